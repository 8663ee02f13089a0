"""How fast a machine receives from and sends to a server that `fedarena profile-device --serve` runs."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.profiling.server import BLOCK, BUSY, SERVICE
from fedarena.profiling.statistics import Clock, summarize

_GROWTH = 4
_MAX_ANSWER_BYTES = 1 << 16
# A proxy on the way would be measured instead of the network.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class NetworkPlan:
    """How much is transferred.

    Transfers grow until one takes `long_enough_seconds`, so that beginning it hardly counts, or has `most_bytes`. That
    size is repeated, unless all transfers of a direction took longer than `patience_seconds` already.
    """

    pings: int = 10
    first_bytes: int = 1 << 16
    most_bytes: int = 1 << 26
    long_enough_seconds: float = 1.0
    repeats: int = 5
    patience_seconds: float = 60.0
    timeout_seconds: float = 15.0  # without a sign of the server


QUICK_PLAN = NetworkPlan(pings=3, most_bytes=1 << 22, long_enough_seconds=0.2, repeats=2, patience_seconds=10.0)


class NetworkProbe:
    """Measures against one server; every problem becomes a sentence with its address."""

    def __init__(self, url: str, plan: NetworkPlan, clock: Clock = time.perf_counter):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadInputError(f"A server is written like http://192.168.1.20:8765, not {url!r}")
        self._url, self._plan, self._clock = url.rstrip("/"), plan, clock

    def ping(self) -> float:
        """Seconds for a question and its answer, connecting included."""
        begin = self._clock()
        answer = self._ask("/")
        seconds = self._clock() - begin
        if answer.get("service") != SERVICE:
            raise self._problem("is not `fedarena profile-device --serve`")
        return seconds

    def measure(self, progress: Callable[[str, int, int], None]) -> dict[str, Any]:
        """What the record says about the network."""
        pings = []
        for number in range(self._plan.pings):
            progress("network: latency", number, self._plan.pings)
            pings.append(self.ping())
        return {
            "latency_seconds": summarize(pings),
            "download": self._direction("download", self.download, progress),
            "upload": self._direction("upload", self.upload, progress),
        }

    def download(self, size: int) -> float:
        """Seconds to receive so many bytes."""
        begin, received = self._clock(), 0
        with self._open(f"/download?bytes={size}", None) as answer:
            while block := self._guard(lambda: answer.read(len(BLOCK))):
                received += len(block)
        if received != size:
            raise self._problem(f"sent {received:,} bytes instead of {size:,}")
        return self._clock() - begin

    def upload(self, size: int) -> float:
        """Seconds to send so many bytes, until the server says that it has them."""
        begin = self._clock()
        received = self._ask("/upload", size).get("bytes")
        if received != size:
            raise self._problem(f"got {received} bytes instead of {size:,}")
        return self._clock() - begin

    def _direction(
        self, name: str, transfer: Callable[[int], float], progress: Callable[[str, int, int], None]
    ) -> list[dict[str, float]]:
        plan, size, transfers = self._plan, self._plan.first_bytes, []
        repeats, total_seconds = 0, 0.0
        while repeats <= plan.repeats:
            progress(f"network: {name} of {size:,} bytes", repeats, plan.repeats + 1)
            seconds = max(transfer(size), 1e-9)
            total_seconds += seconds
            transfers.append({"bytes": size, "seconds": seconds, "bits_per_second": 8 * size / seconds})
            if total_seconds > plan.patience_seconds:
                break
            if repeats or seconds >= plan.long_enough_seconds or size * _GROWTH > plan.most_bytes:
                repeats += 1
            else:
                size *= _GROWTH
        return transfers

    def _ask(self, path: str, upload_bytes: int | None = None) -> dict[str, Any]:
        with self._open(path, upload_bytes) as answer:
            body = self._guard(lambda: answer.read(_MAX_ANSWER_BYTES))
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self._problem("is not `fedarena profile-device --serve`")
        return value

    def _open(self, path: str, upload_bytes: int | None) -> Any:
        request = urllib.request.Request(self._url + path)
        if upload_bytes is not None:
            request = urllib.request.Request(
                self._url + path,
                data=_blocks(upload_bytes),
                headers={"Content-Length": str(upload_bytes), "Content-Type": "application/octet-stream"},
                method="POST",
            )
        return self._guard(lambda: _OPENER.open(request, timeout=self._plan.timeout_seconds))

    def _guard(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == BUSY:
                raise self._problem("serves too many devices at the moment; try again") from None
            raise self._problem(f"is not `fedarena profile-device --serve` (it answers {error.code})") from None
        except urllib.error.URLError as error:
            reason = error.reason
            said = reason.strerror if isinstance(reason, OSError) and reason.strerror else reason
            raise self._problem(f"cannot be reached: {said}") from None
        except TimeoutError:
            raise self._problem(f"said nothing for {self._plan.timeout_seconds:g} seconds") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._problem(f"broke the connection: {error}") from None

    def _problem(self, what: str) -> BadInputError:
        return BadInputError(f"The server {self._url} {what}")


def _blocks(size: int) -> Iterator[bytes]:
    while size:
        block = BLOCK[: min(size, len(BLOCK))]
        size -= len(block)
        yield block
