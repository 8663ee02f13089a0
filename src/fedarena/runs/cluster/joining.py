"""Getting into a Ray cluster, or starting one on this machine; and getting out again."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from fedarena.core.errors import BadInputError

_CONNECT_SECONDS = 10.0
_HTTP2_SETTINGS = b"\x04"  # the type of the frame that both sides begin with
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + _HTTP2_SETTINGS + bytes(5)
_STORE_BYTES = 2**31  # of Ray's store at most, if the machine has so much to spare
_STORE_SHARE = 0.2  # of the machine's memory
_LEAST_STORE_BYTES = 80 * 2**20
_users = 0  # crews of this process in the cluster it is in
_is_ours = False  # whether we have joined it, and not whoever called us
_staying = 0  # blocks of `staying`
_lock = threading.Lock()  # for counting those, which may be in several threads
_bench: dict[Any, list[Any]] = {}  # workers that have nothing to do until the next run, by what they are


@dataclass(frozen=True)
class Wish:
    """Who wants a cluster, for people: what asks for one, where its address is given, and how to do without."""

    asked_by: str = "engine=ray"
    option: str = "engine.address"
    alone: str = "leave engine.address out to use this machine alone"
    otherwise: str = "choose engine=cohort"


_OF_ENGINE = Wish()


def import_ray(wish: Wish = _OF_ENGINE) -> Any:
    """The module, which is an extra."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Workers that give way to everything else on a machine would be waited for.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise BadInputError(
            f"{wish.asked_by} needs Ray, which is not installed here ({error}); pip install 'fedarena[ray]', or "
            f"{wish.otherwise}"
        ) from None
    return ray


def join(address: str | None, local_cores: int, wish: Wish = _OF_ENGINE) -> tuple[Any, bool]:
    """Ray, connected; and whether the cluster is one on this machine for us alone.

    One that this process is in already is used as it is; if `address` is that of another one, it is refused.
    """
    global _users, _is_ours
    ray = import_ray(wish)
    if not ray.is_initialized():
        if address not in (None, "auto"):
            _check_answers(str(address), wish)
        with _own_signals(), _quiet():
            try:
                if address is None:
                    _start(ray, local_cores)
                else:
                    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
                raise BadInputError(_why_not(address, error, wish)) from None
        _silence(ray)
        _is_ours, _users = True, 0
    elif address not in (None, "auto"):
        _check_is_the_same(str(address), ray.get_runtime_context().gcs_address)
    _users += 1
    return ray, address is None and _is_ours


@contextmanager
def staying() -> Iterator[None]:
    """Between several runs in this block, the cluster and its workers stay for the next one, which begins sooner."""
    global _staying, _users
    with _lock:
        _staying += 1
    try:
        yield
    finally:
        with _lock:
            _staying -= 1
            is_last = not _staying
        if is_last:
            if _bench:
                import ray

                for worker in [worker for some in _bench.values() for worker in some]:
                    with suppress(Exception):  # it is gone
                        ray.kill(worker, no_restart=True)
                _bench.clear()
            _users += 1
            leave()


def take_seat(kind: Any, worker: Any) -> bool:
    """Has a worker of some kind wait for the next run, if there may be one."""
    if _staying:
        _bench.setdefault(kind, []).append(worker)
    return bool(_staying)


def from_bench(kind: Any) -> Any | None:
    """A worker of this kind that has nothing to do."""
    waiting = _bench.get(kind)
    return waiting.pop() if waiting else None


def leave() -> None:
    """Gets out of the cluster again, if nobody else of this process is in it; one for us alone ends."""
    global _users, _is_ours
    _users -= 1
    if _users <= 0 and _is_ours and not _staying:
        import ray

        with _own_signals():
            ray.shutdown()
        _is_ours, _users = False, 0


def _start(ray: Any, cores: int) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**33
    store = max(_LEAST_STORE_BYTES, min(_STORE_BYTES, int(_STORE_SHARE * memory)))
    ray.init(
        address="local",
        num_cpus=max(1, cores),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=store,
    )


def _check_answers(address: str, wish: Wish = _OF_ENGINE) -> None:
    """A cluster that is not there is found out at once."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        raise BadInputError(f"{wish.option} must be auto or the host:port of a cluster's head, not {address!r}")
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS) as connection:
            reason = "" if _speaks_grpc(connection) else "something else is there, or it hangs"
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    if reason:
        raise BadInputError(
            f"No Ray cluster answers at {address} ({reason}); start one there (ray start --head --port {port}), or "
            f"{wish.alone}"
        )


def _check_is_the_same(address: str, joined: str) -> None:
    """Refuses another cluster than the one that this process is in, since it can be in one only."""

    def resolved(where: str) -> tuple[str, str]:
        host, _, port = where.removeprefix("ray://").rpartition(":")
        with suppress(OSError):
            host = socket.gethostbyname(host)
        return ("" if host.startswith("127.") else host), port

    (host, port), (other, other_port) = resolved(address), resolved(joined)
    if port != other_port or (host and other and host != other):
        raise BadInputError(
            f"This process is in the Ray cluster at {joined}, and cannot join that at {address} as well; close what is "
            "open there (or call ray.shutdown()), or use another process"
        )


def _speaks_grpc(connection: socket.socket) -> bool:
    """Whether the other side greets as Ray's head does; Ray itself would wait for that for many minutes."""
    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return True  # then it greets otherwise
    connection.sendall(_HTTP2_GREETING)
    return connection.recv(9)[3:4] == _HTTP2_SETTINGS


def _why_not(address: str | None, error: BaseException, wish: Wish) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Version mismatch"):
        there = "on this machine" if address == "auto" else f"at {address}"
        return f"The Ray cluster {there} is of another version ({' '.join(lines[1:])[:200]}); install the same here"
    reason = (lines[0] if lines else type(error).__name__)[:300].rstrip(".")
    if address is None:
        return f"Ray cannot be started on this machine: {reason}; engine=cohort does without it"
    if reason.startswith("Failed to connect"):  # something is there, as far as Ray knows
        where = "on this machine" if address == "auto" else f"at {address}"
        return (
            f"The Ray cluster {where} lets nobody in ({reason}); see that it runs (ray status) and that this process "
            f"has its token (RAY_AUTH_MODE, ~/.ray/auth_token), or {wish.alone}"
        )
    if address == "auto":
        return (
            f"There is no Ray cluster on this machine to join ({reason}); start one (ray start --head), or {wish.alone}"
        )
    return f"The Ray cluster at {address} cannot be joined: {reason}"


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes over what happens on termination; here that waits until everything is written."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except SystemExit as error:
        if error.code == signal.SIGTERM and callable(own := before[signal.SIGTERM]):  # by Ray's handler, just installed
            own(signal.SIGTERM, None)
        raise
    finally:
        for number, handler in before.items():
            if handler not in (None, signal.SIG_DFL):  # otherwise Ray sees to it that its processes end, too
                signal.signal(number, handler)


def _silence(ray: Any) -> None:
    """What Ray says about workers that end goes to the terminal, many lines of it; the pool says it in a sentence."""
    inside: Any = getattr(getattr(ray, "_private", None), "worker", None)
    if hasattr(inside, "print_to_stdstream"):
        inside.print_to_stdstream = lambda *arguments, **options: None


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray says on standard error what it does while it starts; only what goes wrong is of interest."""
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
