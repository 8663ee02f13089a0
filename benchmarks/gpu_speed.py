"""How fast many clients train on one GPU: beside one client at a time, pfl-research, and the limit.

    python benchmarks/gpu_speed.py --output gpu_speed.json

Needs torch and NumPy alone (``PYTHONPATH=src`` instead of an installation will do); pfl-research is measured where it
can be imported. *One at a time* is plain torch on the same GPU, client after client. The *limit* trains the same model
on the same number of samples centrally, in large batches, with plain torch: no simulator of clients with models of
their own can be expected to be faster than that on large models, though on small ones it can, since the limit waits
for Python, too. Both use cuDNN's recurrent layers, which only plain torch can. With ``--at-once`` all cases get ready
at the same time, each in a process of its own, and are then measured one after the other.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedarena.algorithms import FedAvg
from fedarena.models import DataSpec, Task, build_model, make_task
from fedarena.simulate import Simulation, simulate
from fedarena.train import CohortEngine, LocalTraining
from workloads import log_normal_sizes

SEED = 0
# Of the engine, for comparisons.
OPTIONS = {
    "dense": ("written", "factored"),
    "convolutions": ("products", "kernels"),
    "plan": ("together", "beside", "apart"),
}


@dataclass(frozen=True)
class Case:
    """A model, and what every client does with it."""

    model: str
    spec: DataSpec
    steps: int
    batch_size: int
    cohort: int
    central_batch: int = 4096
    options: tuple[tuple[str, Any], ...] = ()
    with_pfl: bool = False
    ragged: bool = False  # clients of log-normal sizes, with as many samples as they would have in batches alike

    @property
    def samples(self) -> int:
        """Samples of a client, on average; it goes over them once."""
        return self.steps * self.batch_size

    def task(self) -> Task:
        """The freshly built model with its loss."""
        if self.model == "gru":  # which one has to write oneself
            return self.plain_task()
        return make_task(build_model(self.model, self.spec, dict(self.options), SEED), self.spec)

    def plain_task(self) -> Task:
        """The same, as one would build it who trains one model only."""
        if self.model not in RECURRENT:
            return self.task()
        torch.manual_seed(SEED)
        return make_task(TorchRecurrent(RECURRENT[self.model], self.spec.classes), self.spec)


DIGITS = DataSpec("classification", 62, (1, 28, 28))
PICTURES = DataSpec("classification", 10, (3, 32, 32))
TEXT = DataSpec("next_token", 90, (80,))
CASES = {
    # 50 samples in batches of 10: the work for which pfl-research's own speed is known
    "logistic regression, 5 x 10": Case(
        "logistic_regression", DataSpec("classification", 5, (60,)), 5, 10, 4096, with_pfl=True
    ),
    "MLP, 5 x 10": Case("mlp", DataSpec("classification", 62, (784,)), 5, 10, 2048, with_pfl=True),
    "CIFAR CNN, 5 x 10": Case("cnn", PICTURES, 5, 10, 512, with_pfl=True),
    "LEAF CNN, 5 x 10": Case("leaf_cnn", DIGITS, 5, 10, 256, with_pfl=True),
    "MLP, 20 x 16": Case("mlp", DataSpec("classification", 62, (784,)), 20, 16, 2048),
    "LEAF CNN, 20 x 16": Case("leaf_cnn", DIGITS, 20, 16, 128),
    "CIFAR CNN, 10 x 16": Case("cnn", PICTURES, 10, 16, 512),
    "char-LSTM 2x256, 5 x 10": Case("lstm", TEXT, 5, 10, 256, 1024),
    "ResNet-18, 5 x 16": Case("resnet18", PICTURES, 5, 16, 64, 1024),
    "transformer, 5 x 16": Case("transformer", TEXT, 5, 16, 256, 1024, (("layers", 3),)),
}
# The work of some of them, 50 samples a client on average, but clients of log-normal sizes.
RAGGED = {
    "MLP, ragged": Case("mlp", DataSpec("classification", 62, (784,)), 5, 10, 2048, ragged=True),
    "CIFAR CNN, ragged": Case("cnn", PICTURES, 5, 10, 512, ragged=True),
    "LEAF CNN, ragged": Case("leaf_cnn", DIGITS, 5, 10, 256, ragged=True),
}

# Measured where they are asked for by name.
OTHER_CASES = {"char-GRU 2x256, 5 x 10": Case("gru", TEXT, 5, 10, 256, 1024)}
ALL_CASES = {**CASES, **OTHER_CASES, **RAGGED}
PFL_COHORT = 50
RECURRENT: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


class TorchRecurrent(nn.Module):
    """The model ``lstm``, or one like it, with torch's own layer."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], vocabulary: int):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 8)
        self.layers = kind(8, 256, num_layers=2, batch_first=True)
        self.output = nn.Linear(256, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token at every position."""
        logits: Tensor = self.output(self.layers(self.embed(tokens))[0])
        return logits


def _examples(case: Case, rows: int, random: np.random.Generator) -> dict[str, Any]:
    if case.spec.kind == "next_token":
        shape = (rows, case.spec.input_shape[0] + 1)
        return {"tokens": random.integers(case.spec.classes, size=shape, dtype=np.uint8)}
    x = random.standard_normal((rows, *case.spec.input_shape), dtype=np.float32)
    return {"x": x, "y": random.integers(case.spec.classes, size=rows)}


class RandomClients:
    """Clients with samples of their own, all of the same number or of log-normal sizes."""

    def __init__(self, case: Case):
        sizes = np.full(case.cohort, case.samples)
        if case.ragged:
            sizes = log_normal_sizes(case.cohort, case.samples)
        self.sizes, self.begins = sizes, np.cumsum(sizes) - sizes
        self.columns = _examples(case, int(sizes.sum()), np.random.default_rng(SEED))

    def counts(self, clients: Any, part: str) -> Any:
        """How many samples each has."""
        return self.sizes[clients]

    def samples(self, clients: Any, part: str) -> Any:
        """The samples of these clients."""
        sizes = self.sizes[clients]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        rows = np.arange(offsets[-1]) + np.repeat(self.begins[clients] - offsets[:-1], sizes)
        columns = {name: values[rows] for name, values in self.columns.items()}
        return SimpleNamespace(columns=columns, offsets=offsets)


def measure(run: Callable[[int], None], clients: float, seconds: float) -> float:
    """Clients per second; `run` does so many rounds of as many clients."""

    def timed(rounds: int) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        run(rounds)
        torch.cuda.synchronize()
        return time.perf_counter() - began

    run(1)  # sets up, compiles, captures
    once = timed(1)
    rounds = max(1, min(200, round(seconds / once)))
    return clients * rounds / timed(rounds)


def make_ours(case: Case, options: dict[str, Any], **parts: Any) -> Callable[[int], None]:
    """A simulation on this case, with these options of the engine, that goes on for as many rounds as it is told."""
    task, algorithm, data, cohort = case.task(), FedAvg(), RandomClients(case), case.cohort
    local = LocalTraining(epochs=1, batch_size=case.batch_size, lr=0.01)
    everybody = np.arange(cohort)
    algorithm.prepare(cohort, local)
    rounds = 10**6
    simulation = Simulation(
        seed=SEED,
        rounds=rounds,
        cohort=cohort,
        task=task,
        algorithm=algorithm,
        engine=CohortEngine(task, algorithm, local, data, SEED, device="cuda", **options),
        training_clients=everybody,
        evaluation_clients=everybody[:1],
        evaluation_part="train",
        evaluate_every=rounds,
        flops_per_sample=0,
        client_ids=lambda clients: [str(client) for client in clients],
        **parts,
    )
    outcomes = simulate(simulation)
    next(outcomes)

    def run(rounds: int) -> None:
        for _ in itertools.islice(outcomes, rounds):
            pass

    return run


class PlainTraining:
    """Plain torch: a module, torch's SGD, batches that lie on the GPU."""

    def __init__(self, case: Case, batch_size: int, precision: str):
        self.task = case.plain_task()
        self.module = self.task.module.cuda().train()
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.01)
        self.precision = precision
        examples = _examples(case, batch_size, np.random.default_rng(SEED))
        self.batch = self.task.batch({name: torch.from_numpy(values).cuda() for name, values in examples.items()})

    def step(self) -> None:
        """One gradient step."""
        self.optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=self.precision == "bf16"):
            logits = self.module(self.batch["x"])
            loss = F.cross_entropy(logits.flatten(0, -2), self.batch["y"].flatten())
        loss.backward()
        self.optimizer.step()


def make_limit(case: Case, precision: str) -> Callable[[int], None]:
    """Steps on the same samples, trained centrally in large batches."""
    training = PlainTraining(case, case.central_batch, precision)

    def run(steps: int) -> None:
        for _ in range(steps):
            training.step()

    return run


def make_one_at_a_time(case: Case, precision: str) -> Callable[[int], None]:
    """Client after client: load the parameters, train, add up the differences."""
    training = PlainTraining(case, case.batch_size, precision)
    params = list(training.module.parameters())
    start = [p.detach().clone() for p in params]
    total = [torch.zeros_like(p) for p in start]

    @torch.no_grad()
    def begin() -> None:
        torch._foreach_copy_(params, start)

    @torch.no_grad()
    def add() -> None:
        torch._foreach_add_(total, torch._foreach_sub(params, start))

    def run(clients: int) -> None:
        for _ in range(clients):
            begin()
            for _ in range(case.steps):
                training.step()
            add()

    return run


def make_pfl(case: Case, cohort: int) -> Callable[[int], None] | None:
    """pfl-research's federated averaging on this case; None where it is not installed."""
    try:
        from peers.pfl_gpu import make_run
    except ImportError:
        return None
    data = RandomClients(case)
    return make_run(case.task().module, data.columns, case, cohort)


def as_plain_torch(run: Callable[[int], None], precision: str) -> Callable[[int], None]:
    """With torch's switches as somebody has them who does not use our engine, which sets them for itself."""

    def run_plainly(times: int) -> None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
        torch.use_deterministic_algorithms(False)
        run(times)

    return run_plainly


def contenders(case: Case, options: dict[str, Any], only_ours: bool) -> dict[str, tuple[Callable[[int], None], float]]:
    """What is measured, each with the number of clients that it trains at a time."""
    precision = options["precision"]
    found: dict[str, tuple[Callable[[int], None], float]] = {"ours": (make_ours(case, options), case.cohort)}
    if only_ours:
        return found
    plain = {
        "limit": (make_limit(case, precision), case.central_batch / case.samples),
        "one_at_a_time": (make_one_at_a_time(case, precision), 1),
        "pfl": (make_pfl(case, PFL_COHORT) if case.with_pfl else None, PFL_COHORT),
    }
    for name, (run, clients) in plain.items():
        if run is not None:
            found[name] = (as_plain_torch(run, precision), clients)
    return found


def measure_case(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """All contenders in turns; if the case is one of many at once, when it is told to."""
    case = ALL_CASES[name]
    options = {option: getattr(arguments, option) for option in OPTIONS}
    options |= {"precision": arguments.precision, "compile": not arguments.no_compile}
    running = contenders(case, options, arguments.only_ours)
    if arguments.in_turn:
        for run, _ in running.values():
            run(1)
        torch.cuda.synchronize()
        print("ready", flush=True)
        input()
    found: dict[str, list[float]] = {what: [] for what in running}
    for _ in range(arguments.repetitions):
        for what, (run, clients) in running.items():
            found[what].append(measure(run, clients, arguments.seconds))
    return {
        "case": name,
        "cohort": case.cohort,
        **{what: float(np.median(values)) for what, values in found.items()},
        "all": found,
    }


class InTurn:
    """What is measured in a process of its own, which gets ready before: a script with these arguments."""

    def __init__(self, script: str, *arguments: str):
        command = [sys.executable, script, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait(self) -> None:
        """Until it could be measured, or has failed."""
        self._line("ready")

    def measure(self) -> dict[str, Any] | None:
        """What it found; None if it failed, which it has said itself."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("now\n")
            self._process.stdin.flush()
        except OSError:
            return None
        line = self._line("{")
        self._process.wait()
        return json.loads(line) if line else None

    def _line(self, beginning: str) -> str:
        assert self._process.stdout is not None
        return next((line for line in self._process.stdout if line.startswith(beginning)), "")


def main() -> None:
    """Measures the cases that were asked for and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="*", default=list(CASES), help="parts of the names of cases, or ragged")
    parser.add_argument("--precision", choices=["full", "tf32", "bf16"], default="tf32")
    parser.add_argument("--seconds", type=float, default=2.0, help="of every measurement")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--no-compile", action="store_true")
    for option, values in OPTIONS.items():
        parser.add_argument(f"--{option}", choices=values, help=f"engine.{option}, if not the default")
    parser.add_argument("--only-ours", action="store_true", help="neither one at a time nor peers nor the limit")
    parser.add_argument("--at-once", action="store_true", help="all cases get ready at the same time")
    parser.add_argument("--in-turn", metavar="CASE", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA GPU here")
    if arguments.in_turn:
        print(json.dumps(measure_case(arguments.in_turn, arguments)), flush=True)
        return
    names = [name for name in ALL_CASES if any(part in name for part in arguments.cases)]
    in_turn = []
    if arguments.at_once:
        given = [word for word in sys.argv[1:] if word != "--at-once"]
        in_turn = [InTurn(__file__, *given, "--in-turn", name) for name in names]
    for waiting in in_turn:
        waiting.wait()
    rows = []
    print(
        f"{'':30}{'cohort':>8}{'one at a time':>15}{'pfl':>8}{'limit':>9}{'ours':>9}{'of limit':>10}{'times pfl':>11}"
    )
    for number, name in enumerate(names):
        row = in_turn[number].measure() if in_turn else measure_case(name, arguments)
        if row is None:
            print(f"{name:30}  failed", flush=True)
            continue
        rows.append(row)
        print(_line(name, row["cohort"], row), flush=True)
        if arguments.output:
            _write(arguments, rows)
        torch.cuda.empty_cache()


def _write(arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    about = {
        "command": "python benchmarks/gpu_speed.py " + " ".join(_given(arguments)),
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "unit": "clients per second, median of the repetitions",
    }
    arguments.output.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def _line(name: str, cohort: int, row: dict[str, float]) -> str:
    def number(key: str) -> str:
        return f"{row[key]:,.0f}" if key in row else "-"

    of_limit = f"{row['ours'] / row['limit']:.0%}" if "limit" in row else "-"
    times_pfl = f"{row['ours'] / row['pfl']:.0f}x" if "pfl" in row else "-"
    return (
        f"{name:30}{cohort:>8}{number('one_at_a_time'):>15}{number('pfl'):>8}{number('limit'):>9}"
        f"{number('ours'):>9}{of_limit:>10}{times_pfl:>11}"
    )


def _given(arguments: argparse.Namespace) -> list[str]:
    words = [f"--{name} {getattr(arguments, name)}" for name in ("precision", "repetitions", "seconds")]
    if arguments.cases != list(CASES):
        words = [shlex.join(["--cases", *arguments.cases]), *words]
    words += [f"--{option} {getattr(arguments, option)}" for option in OPTIONS if getattr(arguments, option)]
    flags = [flag for flag in ("--no-compile", "--at-once") if getattr(arguments, flag[2:].replace("-", "_"))]
    return [*words, *flags]


if __name__ == "__main__":
    main()
