"""The ledger of a deploy folder: what its members' privacy has been spent on, over all runs.

``ledger.jsonl`` only ever grows: a line for every run, and one for every step of its server, on disk before anybody
sees what the step came to. What devices upload with noise of their own is spent in rounds without a step as well. Each
line is sealed with a checksum of itself and of all before it, so that none can be changed or taken out unnoticed. How
long it is and its last seal stand in ``authority/ledger.json`` as well, so that it cannot be cut off, deleted or
replaced by an older copy either: what else is in that folder, no deployment can do without. This finds accidents, and
whoever changes one of the two files; somebody who may write everything here could still put back both, and is trusted
with everybody's updates anyway.

The ledger does not lie in the folder of a run: deleting that gives nobody back what was spent. A run of which the
folder is gone is another run when it begins again, and adds to the same account.

Runs are composed by Rényi divergences, which add up; one run alone has the ε of its own accountant. What has no such
divergences is added as it is, ε to ε and δ to δ.

``noise.secret`` is what noise is drawn from at the server. It is never sent to anybody.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import sync_folder, write_bytes
from fedarena.core.sealed_json import seal_json, unseal_json
from fedarena.core.secret_noise import KEY_BYTES, SecretSource
from fedarena.core.words import counted
from fedarena.deploy.authority import write_secret
from fedarena.privacy.accounting import NEIGHBOURS, Sampled, composed_epsilon
from fedarena.privacy.mechanism import Mechanism

LEDGER_FILE, SECRET_FILE, HEAD_FILE = "ledger.jsonl", "noise.secret", "authority/ledger.json"
_SECRET_BYTES = 32
_BEGINNING = "fedarena privacy ledger 1"  # what the first line is sealed with


@dataclass
class _Account:
    """What one run has spent."""

    name: str
    sampled: Sampled | None  # None: it tells its ε itself
    delta: float
    steps: int = 0  # of the server, that anybody may have seen
    epsilon: float = 0.0  # after these, by the run's own accountant

    @property
    def has_spent(self) -> bool:
        """Rounds that fail make no step, and still spend what was uploaded in them."""
        return self.steps > 0 or self.epsilon > 0


class PrivacyLedger:
    """What was spent in a deploy folder. One server at a time has it open."""

    def __init__(self, folder: Path):
        self._path, self._head = folder / LEDGER_FILE, folder / HEAD_FILE
        self._accounts: dict[str, _Account] = {}
        self._seals = [_BEGINNING]  # and that of every line
        self._length = 0  # bytes of all complete lines
        self._read()
        self._check_end()
        self._secret = folder / SECRET_FILE

    def noise(self, run: str) -> SecretSource:
        """Where a run's server draws its noise: other numbers in every run, which nobody else can know."""
        secret = _read_secret(self._secret)
        return SecretSource(hashlib.blake2b(run.encode(), key=secret, digest_size=KEY_BYTES).digest())

    def open_run(self, run: str, name: str, mechanism: Mechanism) -> None:
        """Begins the account of a run, or goes on with it. `run` tells it from all others that ever had its name."""
        if run in self._accounts:
            return
        if mechanism.simulates:
            raise BadInputError(
                "privacy.noise_cohort simulates the noise of cohorts that do not exist, and nobody would be protected "
                "by it; leave it out for real devices"
            )
        sampled = mechanism.sampled
        other = next((a.sampled for a in self._accounts.values() if a.sampled is not None and a.steps), None)
        if sampled is not None and other is not None and other.sampling != sampled.sampling:
            raise BadInputError(
                f"{self._path} has accounts of what an attacker learns if {NEIGHBOURS[other.sampling]}, and this run "
                f"would tell what it learns if {NEIGHBOURS[sampled.sampling]}, which cannot be added up; choose "
                f"selector={other.sampling}"
            )
        told = None if sampled is None else asdict(sampled)
        self._append({"run": run, "name": name, "sampled": told, "delta": mechanism.delta})

    def steps(self, run: str) -> int:
        """How many steps of a run were written down."""
        return self._accounts[run].steps if run in self._accounts else 0

    def spend(self, run: str, steps: int, epsilon: float) -> None:
        """Notes what a run has spent with the step of this number, before anybody sees what came of it."""
        account = self._accounts[run]
        if steps > account.steps or epsilon > account.epsilon:
            self._append({"run": run, "steps": steps, "epsilon": epsilon})

    def epsilon(self, run: str, steps: int, own: float) -> float:
        """What all runs together have spent when this one has made so many steps, after which it alone spent `own`.

        It holds for the δ of this run; a δ of runs that only tell their ε comes to it.
        """
        account = self._accounts[run]
        others = [other for key, other in self._accounts.items() if key != run and other.has_spent]
        if not others:
            return own
        plain = sum(other.epsilon for other in others if other.sampled is None)
        composed = [(other.sampled, other.steps) for other in others if other.sampled is not None]
        if account.sampled is None:
            plain += own
        elif steps:
            composed.append((account.sampled, steps))
        return plain + (composed_epsilon(composed, account.delta) if composed else 0.0)

    def describe(self) -> list[dict[str, Any]]:
        """Every run that has spent something, and what."""
        return [
            {"run": account.name, "steps": account.steps, "epsilon": account.epsilon, "delta": account.delta}
            for account in self._accounts.values()
            if account.has_spent
        ]

    def _read(self) -> None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            data = b""
        complete, _, rest = data.rpartition(b"\n")
        for number, line in enumerate(complete.split(b"\n") if complete else [], 1):
            try:
                entry = json.loads(line)
                seal = entry.pop("seal")
                if seal != _sealed(self._seals[-1], entry) or line != _line(entry, seal):
                    raise ValueError("its seal is broken")
                self._note(entry)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise self._damaged(f"in line {number} ({error})") from None
            self._seals.append(seal)
        self._length = len(data) - len(rest)  # what was not complete was told to nobody

    def _check_end(self) -> None:
        """A server that was killed may have written a line more than the head knows of, and never a line less."""
        try:
            head = unseal_json(self._head.read_bytes())
        except FileNotFoundError:
            raise DamagedFileError(
                f"{self._head} is missing, which says how much privacy was spent here: no private run can begin; put "
                "back a copy of the file"
            ) from None
        if head is None:
            raise DamagedFileError(f"{self._head} is damaged: it is not what was written; put back a copy of the file")
        lines, found = int(head["lines"]), len(self._seals) - 1
        if found < lines:
            raise self._damaged(f"at its end: it has {counted(found, 'line')}, and {lines:,} were written")
        if self._seals[lines] != head["seal"]:
            raise self._damaged(f"in line {lines}, which is not the one that was written")

    def _damaged(self, where: str) -> DamagedFileError:
        return DamagedFileError(
            f"{self._path} is damaged {where}: nobody knows any more what privacy was spent here, so no private run "
            "can begin; put back a copy of the file"
        )

    def _note(self, entry: Mapping[str, Any]) -> None:
        if "steps" in entry:
            account = self._accounts[entry["run"]]
            account.steps, account.epsilon = int(entry["steps"]), float(entry["epsilon"])
        else:
            told = entry["sampled"]
            sampled = None if told is None else Sampled(**told)
            self._accounts[entry["run"]] = _Account(entry["name"], sampled, float(entry["delta"]))

    def _append(self, entry: dict[str, Any]) -> None:
        seal = _sealed(self._seals[-1], entry)
        line = _line(entry, seal) + b"\n"
        is_new = not self._path.exists()
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, self._length)  # half a line may be there, of a server that was killed
            os.pwrite(descriptor, line, self._length)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_folder(self._path.parent)
        self._seals.append(seal)
        self._length += len(line)
        _write_head(self._head, len(self._seals) - 1, seal)
        self._note(entry)


class Account:
    """What one run may spend and has spent, beside all others of its deploy folder."""

    def __init__(self, ledger: PrivacyLedger, run: str, name: str, mechanism: Mechanism):
        self._ledger, self._run, self._mechanism = ledger, run, mechanism
        ledger.open_run(run, name, mechanism)

    @property
    def noise(self) -> SecretSource:
        """Where the server draws its noise."""
        return self._ledger.noise(self._run)

    def epsilon(self, steps: int) -> float | None:
        """What all runs together have spent when this one has made so many steps."""
        own = self._mechanism.epsilon(steps)
        return None if own is None else self._ledger.epsilon(self._run, steps, own)

    def spend(self, steps: int) -> None:
        """Writes down what is spent with the step of this number, before anybody sees it."""
        self._ledger.spend(self._run, steps, self._mechanism.epsilon(steps) or 0.0)

    def check_budget(self, steps: int) -> None:
        """Refuses to begin with a step that would spend more than may be spent."""
        budget, next_epsilon = self._mechanism.budget, self.epsilon(steps + 1)
        if budget is not None and next_epsilon is not None and next_epsilon > budget:
            raise BadInputError(
                f"One round more would bring what the members of this deploy folder have spent in all runs to "
                f"ε = {next_epsilon:.4g}, more than privacy.epsilon={budget:g}; their privacy cannot be had back"
            )


def spent_lines(folder: Path) -> list[str]:
    """What every private run of a deploy folder has spent, for people."""
    return [
        f"Privacy spent by {run['run']}: ε = {run['epsilon']:.4g} for δ = {run['delta']:.3g} after "
        f"{counted(run['steps'], 'step')}"
        for run in PrivacyLedger(folder).describe()
    ]


def begin_ledger(folder: Path) -> None:
    """For a new deploy folder: nothing was spent yet."""
    _write_head(folder / HEAD_FILE, 0, _BEGINNING)


def new_account() -> str:
    """What tells the account of a run from all others, whatever the run is called."""
    return secrets.token_hex(16)


def _write_head(path: Path, lines: int, seal: str) -> None:
    write_bytes(path, seal_json({"lines": lines, "seal": seal}))


def _line(entry: Mapping[str, Any], seal: str) -> bytes:
    return json.dumps({**entry, "seal": seal}, sort_keys=True).encode()


def _sealed(before: str, entry: Mapping[str, Any]) -> str:
    text = before + json.dumps(entry, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _read_secret(path: Path) -> bytes:
    if not path.exists():
        write_secret(path, secrets.token_bytes(_SECRET_BYTES))
    secret = path.read_bytes()
    if len(secret) != _SECRET_BYTES:
        raise DamagedFileError(f"{path} is damaged: it has {len(secret)} bytes instead of {_SECRET_BYTES}")
    return secret
