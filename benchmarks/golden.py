"""Did a change of the code change a result? Hashes of models and tables for every algorithm x protocol, of two trees.

    python benchmarks/golden.py record before.json --source /path/to/old/checkout
    python benchmarks/golden.py record after.json
    python benchmarks/golden.py compare before.json after.json

Hashes are of bits, which depend on the machine and on torch, so both sides must be recorded on the same machine; that
is why nothing is kept here to compare with. Tables are compared column by column, those that both sides have.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ALGORITHMS = (
    *("fedavg", "fedavgm", "fedprox", "fedadagrad", "fedadam", "fedyogi", "scaffold", "feddyn", "fednova", "qfedavg"),
    *("minibatch_sgd", "reptile", "mocha", "ditto", "fedbn", "local_only", "timelyfl", "fetchsgd", "fedkd"),
    "biasprompt",
)
PROTOCOLS = ("ideal", "synchronous", "deadline", "readiness", "staleness_aware", "buffered", "asynchronous")
BASE: dict[str, Any] = {
    "federation": {"name": "digits", "partition": {"name": "dirichlet", "clients": 30}},
    "model": {"name": "mlp", "hidden": [12, 12]},
    "rounds": 4,
    "cohort": 7,
    "seed": 3,
    "local": {"batch_size": 8, "lr": 0.05, "epochs": 2},
    "evaluation": {"every": 2},
}
PHONES: dict[str, Any] = {"fleet": "fedscale", "clock": {"overhead_seconds": 5, "start_hour": 9, "crash_rate": 0.1}}
OPTIONS: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.1, "partial_work": True},
    "fedbn": {"local_layers": ["1.*"]},
    "local_only": {"learning_rates": [0.01, 0.1]},
}
TABLES = ("rounds", "clients", "jobs")


def cases() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Every case: its name, and its settings, in as many spellings as there have been."""
    for algorithm, protocol, dtype in itertools.product(ALGORITHMS, PROTOCOLS, ("float64", "float32")):
        settings = BASE | (PHONES if protocol != "ideal" else {})
        method = {"name": algorithm, **OPTIONS.get(algorithm, {})}
        settings = settings | {"algorithm": method, "protocol": protocol, "engine": {"dtype": dtype}}
        yield f"{algorithm} {protocol} {dtype}", [settings]
    phones = BASE | PHONES
    more: dict[str, list[dict[str, Any]]] = {
        "reference": [BASE | {"engine": {"name": "reference"}}],
        "few lanes": [BASE | {"cohort": 20, "engine": {"lanes": 2}}],
        "momentum": [BASE | {"local": {"steps": 5, "momentum": 0.9, "weight_decay": 0.01}}],
        "adam": [BASE | {"local": {"optimizer": "adam", "lr": 0.003}}],
        "pooled": [BASE | {"training": "iid"}],
        "centralized": [BASE | {"training": "centralized", "cohort": 1}],
        "text": [{"federation": "chitchat", "rounds": 2, "cohort": 6, "evaluation": {"max_clients": 40}}],
        "cnn": [BASE | {"model": "cnn", "rounds": 2}],
        "dropout": [BASE | {"model": {"name": "cnn", "dropout": 0.2}, "rounds": 2}],
        "vit": [BASE | {"model": {"name": "vit", "layers": 1}, "rounds": 2}],
        "oort": [phones | {"selector": "oort", "protocol": "synchronous", "rounds": 8}],
        "power of choice": [phones | {"selector": "power_of_choice", "protocol": "synchronous"}],
        "short deadline": [phones | {"algorithm": "timelyfl", "protocol": {"name": "deadline", "seconds": 20.0}}],
        "rescale": [
            phones | {"protocol": {"name": "buffered", "rescale": True}},
            phones | {"protocol": "buffered", "aggregator": {"name": "mean", "rescale": True}},
        ],
        "surgery reptile reference": [
            phones | {"protocol": "staleness_aware", "algorithm": "reptile", "engine": {"name": "reference"}}
        ],
    }
    for merging in ("surgery", "sum", "shrink"):
        aggregator = {"name": "mean"} if merging == "shrink" else {"name": "by_age", "merging": merging}
        more[f"staleness_aware {merging}"] = [
            phones | {"protocol": {"name": "staleness_aware", "merging": merging}},
            phones | {"protocol": "staleness_aware", "aggregator": aggregator},
        ]
    yield from more.items()


def record(path: Path, source: Path, only: str | None) -> None:
    """Runs every case with the code of a checkout and writes the hashes."""
    environment = os.environ | {"PYTHONPATH": str(source / "src")}
    arguments = [sys.executable, __file__, "record-here", str(path.absolute()), *(["--only", only] if only else [])]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(arguments, env=environment, cwd=folder, check=True)


def record_here(path: Path, only: str | None) -> None:
    import fedarena

    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for name, spellings in cases():
        if only is None or only in name:
            found[name] = _hashes(fedarena, spellings, len(found))
            print(f"\r{len(found)} cases ", end="", file=sys.stderr)
    print(f"with {fedarena.__file__}", file=sys.stderr)
    path.write_text(json.dumps(found, indent=1))


def _hashes(fedarena: Any, spellings: list[dict[str, Any]], number: int) -> dict[str, str]:
    refused = ""
    for settings in spellings:
        try:
            result = fedarena.run(settings, runs_folder=Path(f"runs/{number}"), progress=False)
        except Exception as error:
            refused = refused or f"{type(error).__name__}: {error}"
            continue
        return _model_hashes(result.path) | _table_hashes(result)
    return {"refused": refused}


def _model_hashes(folder: Path) -> dict[str, str]:
    import safetensors.numpy

    newest = max((folder / "checkpoint").glob("round-*.safetensors"), key=lambda p: int(p.stem.split("-")[1]))
    tensors = safetensors.numpy.load_file(newest)
    return {f"model {key}": _digest(value.tobytes()) for key, value in tensors.items() if ":" not in key}


def _table_hashes(result: Any) -> dict[str, str]:
    hashes = {}
    for table in TABLES:
        columns = getattr(result, table).to_pydict()
        hashes |= {f"{table}.{name}": _digest(repr(values).encode()) for name, values in columns.items()}
    return hashes


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def compare(before: Path, after: Path) -> int:
    """Prints what differs; the number of cases that do."""
    old, new = (json.loads(path.read_text()) for path in (before, after))
    different, compared, gone = 0, 0, set[str]()
    for name in old:
        both = old[name].keys() & new.get(name, {}).keys()
        gone |= old[name].keys() - new.get(name, {}).keys()
        changed = sorted(key for key in both if old[name][key] != new[name][key])
        compared += len(both)
        if changed or not both:
            different += 1
            print(f"{name}: {', '.join(changed[:8]) or 'nothing in common'}")
    print(f"{len(old)} cases, {compared} hashes compared, {different} cases differ")
    print(f"only before: {', '.join(sorted(gone)) or 'nothing'}")
    refused = [name for name in old if "refused" in old[name] and "refused" in new.get(name, {})]
    if refused:  # so nothing was compared: methods that do not go together, or settings that have new names
        print(f"refused by both: {', '.join(refused)}")
    return different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("record", "record-here"):
        command = commands.add_parser(name)
        command.add_argument("path", type=Path)
        command.add_argument("--only", help="cases whose name contains this")
        command.add_argument("--source", type=Path, default=Path(__file__).parent.parent)
    command = commands.add_parser("compare")
    command.add_argument("before", type=Path)
    command.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "compare":
        return min(compare(arguments.before, arguments.after), 1)
    if arguments.command == "record":
        record(arguments.path, arguments.source, arguments.only)
    else:
        record_here(arguments.path, arguments.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
