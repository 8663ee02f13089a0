"""``python -m fedarena.client alice.zip --data mydata.py:load``: takes part in a run with this device's own samples."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from fedarena.client.conditions import Conditions
from fedarena.client.identity import read_invitation
from fedarena.client.loading import load_samples
from fedarena.client.samples import RawSamples
from fedarena.core.errors import BadInputError, FedArenaError
from fedarena.core.outside_text import harmless

_MOST_RECORD_BYTES = 48 * 1024  # a message of all has 64 KiB
_MOST_SHOWN = 100  # characters
_HINDRANCES = ("trying again", "not working", "pausing")
_STOPPED: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143}


def main(arguments: list[str] | None = None) -> int:
    """Takes part until the run is over, and returns the exit code."""
    given = _parser().parse_args(arguments)
    line = _Line()
    stopped = _Stop()
    try:
        return _take_part(given, line, stopped)
    except FedArenaError as error:
        line.say(f"Error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        line.say("Stopped; start again to go on")
        return _STOPPED.get(stopped.signal or signal.SIGINT, 130)
    except OSError as error:
        line.say(f"Error: {error}")
        return 1
    finally:
        stopped.restore()


def _take_part(given: argparse.Namespace, line: _Line, stopped: _Stop) -> int:
    from fedarena.client.kept import DeviceFolder
    from fedarena.client.link import Link, StoppedError
    from fedarena.client.session import Options, Session

    invitation = read_invitation(Path(given.invitation))
    invitation.check_dates()
    options = Options(
        given.device,
        given.threads,
        tuple(given.allow),
        Conditions(given.only_charging, given.only_wifi, given.only_idle),
        record=None if given.record is None else _record(Path(given.record)),
        only_secure=given.only_secure,
    )
    raw = RawSamples(load_samples(given.data), given.data)
    state = Path(given.state) if given.state else Path(given.invitation).with_suffix(".state")
    folder = DeviceFolder(state)
    link = Link(invitation, stopped.event, line.show)
    try:
        line.say(f"{invitation.name}: connecting to {invitation.address}")
        line.say(Session(link, folder, raw, options, line.say, line.show).take_part())
    except StoppedError:
        raise KeyboardInterrupt from None
    finally:
        link.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fedarena.client", description=__doc__)
    parser.add_argument("invitation", help="the file that you were invited with")
    parser.add_argument(
        "--data", required=True, metavar="FILE:FUNCTION", help="your function that gives the samples, as mydata.py:load"
    )
    parser.add_argument(
        "--state", metavar="FOLDER", help="where this device keeps what it needs; beside the invitation, if not given"
    )
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda", "mps"], help="what computes")
    parser.add_argument("--threads", type=int, help="processors that compute; as many as the run says, if not given")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="a package of yours that the run may use parts of",
    )
    parser.add_argument("--record", metavar="FILE", help="what `fedarena profile-device` found out about this device")
    parser.add_argument(
        "--only-secure", action="store_true", help="take part only if the server gets secure sums of updates alone"
    )
    parser.add_argument("--only-charging", action="store_true", help="work only while the device charges")
    parser.add_argument("--only-wifi", action="store_true", help="work only on Wi-Fi or a cable")
    parser.add_argument("--only-idle", action="store_true", help="work only while nobody uses the device")
    return parser


def _record(path: Path) -> dict[str, Any]:
    """A device record; the server decides whether it can use it."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadInputError(f"--record {path} cannot be read: {error}") from None
    if not isinstance(value, dict) or len(json.dumps(value)) > _MOST_RECORD_BYTES:
        raise BadInputError(f"--record {path} is not a device record, which `fedarena profile-device` writes")
    return value


class _Stop:
    """Ctrl-C and termination end waiting at once, and a computation at its next step."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.signal: int | None = None
        self._former = [(number, signal.signal(number, self._stop)) for number in _STOPPED]

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self.event.set()
        raise KeyboardInterrupt

    def restore(self) -> None:
        for number, handler in self._former:
            signal.signal(number, handler)


class _Line:
    """Sentences that stay, and one line about what is done at the moment, where somebody sees it.

    Where nobody does, as in the log of a service, what keeps the client from working stays, too.
    """

    def __init__(self) -> None:
        self._shown, self._hindrance, self._lock = "", "", threading.Lock()
        self._is_seen = sys.stderr.isatty()

    def say(self, sentence: str) -> None:
        with self._lock:
            self._clear()
            self._hindrance = ""
            print(harmless(sentence), file=sys.stderr, flush=True)

    def show(self, what: str) -> None:
        with self._lock:
            text = harmless(what)
            if self._is_seen:
                self._clear()
                self._shown = text[:_MOST_SHOWN]
                print(self._shown, end="", file=sys.stderr, flush=True)
            elif any(word in text for word in _HINDRANCES) and text != self._hindrance:
                self._hindrance = text
                print(text, file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._shown:
            print("\r" + " " * len(self._shown) + "\r", end="", file=sys.stderr)
            self._shown = ""


if __name__ == "__main__":
    sys.exit(main())
