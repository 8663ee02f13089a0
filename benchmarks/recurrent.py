"""Recurrent models on this machine's CPU cores: the cohort engine, the reference engine, and torch alone.

    python benchmarks/recurrent.py [--cases leaf small] [--beside FOLDER] [--seconds 4] [--repetitions 3]

Every client has 50 sequences, batches of 10, one epoch of plain SGD. *Torch alone* is a loop over clients with torch's
own layer and optimizer, one process with one thread per core, and nothing federated: what others build on. FOLDER has
the sources of another version (such as `src` of `git worktree add FOLDER COMMIT`), measured in the same turn. Clients
per second of CPU time mean something even where others use the cores, too.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

# What the model is, length of a sequence, characters, width of them, hidden width, layers, clients of a round.
CASES = {
    "leaf": ("lstm", 80, 80, 8, 256, 2, 8),
    "small": ("lstm", 64, 98, 16, 64, 1, 32),
    "tiny": ("lstm", 20, 98, 16, 16, 1, 64),
    "own LSTM": (nn.LSTM, 64, 98, 16, 64, 2, 32),
    "own GRU": (nn.GRU, 64, 98, 16, 64, 2, 32),
}
SAMPLES, BATCH_SIZE, LR = 50, 10, 0.1
ROOT = Path(__file__).parents[1]


class Recurrent(nn.Module):
    """A model of characters with torch's own layer."""

    def __init__(self, kind: Any, classes: int, embedding: int, hidden: int, layers: int):
        super().__init__()
        self.embed = nn.Embedding(classes, embedding)
        self.layers = kind(embedding, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.output(self.layers(self.embed(tokens))[0])
        return scores


class Clients:
    """Clients with the same random sequences."""

    def __init__(self, length: int, classes: int):
        self.tokens = np.random.default_rng(0).integers(1, classes, size=(SAMPLES, length + 1)).astype(np.uint8)

    def counts(self, clients: Any, part: str) -> Any:
        return np.full(len(clients), SAMPLES)

    def samples(self, clients: Any, part: str) -> Any:
        offsets = np.arange(len(clients) + 1) * SAMPLES
        return SimpleNamespace(columns={"tokens": np.concatenate([self.tokens] * len(clients))}, offsets=offsets)


def engine_rounds(tool: str, case: str) -> tuple[Callable[[], None], int]:
    """Trains a round of clients with an engine."""
    from fedarena.algorithms import FedAvg
    from fedarena.models import DataSpec, build_model, make_task
    from fedarena.train import CohortEngine, Job, LocalTraining, ReferenceEngine, train_jobs

    kind, length, classes, embedding, hidden, layers, clients = CASES[case]
    spec = DataSpec("next_token", classes, (length,), padding=0, unknown=1)
    torch.manual_seed(0)
    if kind == "lstm":
        module = build_model(kind, spec, {"embedding": embedding, "hidden": hidden, "layers": layers}, seed=0)
    else:
        module = Recurrent(kind, classes, embedding, hidden, layers)
    local = LocalTraining(epochs=1, batch_size=BATCH_SIZE, lr=LR)
    engine_kind = ReferenceEngine if tool == "reference" else CohortEngine
    engine = engine_kind(make_task(module, spec), FedAvg(), local, Clients(length, classes), seed=0)
    broadcast = {"params": engine.initial_params()}

    def run() -> None:
        for _ in train_jobs(engine, [Job(client, 1) for client in range(clients)], {0: broadcast}, {}):
            pass

    return run, clients


def torch_rounds(case: str) -> tuple[Callable[[], None], int]:
    """Trains one client after the other with torch alone."""
    kind, length, classes, embedding, hidden, layers, _ = CASES[case]
    first = Recurrent(nn.LSTM if kind == "lstm" else kind, classes, embedding, hidden, layers)
    tokens = torch.from_numpy(Clients(length, classes).tokens).long()

    def run() -> None:
        module = copy.deepcopy(first)
        optimizer = torch.optim.SGD(module.parameters(), lr=LR)
        for rows in torch.randperm(SAMPLES).split(BATCH_SIZE):
            optimizer.zero_grad()
            F.cross_entropy(module(tokens[rows, :-1]).flatten(0, 1), tokens[rows, 1:].flatten()).backward()
            optimizer.step()

    return run, 1


def worker(tool: str, case: str, seconds: float) -> None:
    """Measures one tool, and prints clients per second, the same per second of CPU time, and seconds until ready."""
    if tool == "torch":
        torch.set_num_threads(1)
    began = time.perf_counter()
    run, clients = torch_rounds(case) if tool == "torch" else engine_rounds(tool, case)
    run()
    ready = time.perf_counter() - began
    rounds, began, used = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds or not rounds:
        run()
        rounds += 1
    trained = rounds * clients
    print(json.dumps([trained / (time.perf_counter() - began), trained / (time.process_time() - used), ready]))


def measure(tool: str, case: str, seconds: float, sources: Path) -> tuple[float, float, float]:
    """Clients per second on all cores and per second of a core, and seconds until the first round was over."""
    processes = len(os.sched_getaffinity(0)) if tool == "torch" else 1
    command = [sys.executable, __file__, "--worker", tool, "--cases", case, "--seconds", str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(sources), "PYTHONWARNINGS": "ignore"}
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) for _ in range(processes)]
    found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]
    rates, of_cores, ready = zip(*found, strict=True)
    return sum(rates), statistics.mean(of_cores), max(ready)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--tools", nargs="+", default=["cohort", "torch", "reference"])
    parser.add_argument("--beside", type=Path, help="folder with the sources of another version")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker, arguments.cases[0], arguments.seconds)
        return
    ways = [(tool, tool, ROOT / "src") for tool in arguments.tools]
    if arguments.beside:
        ways.append(("cohort, other version", "cohort", arguments.beside))
    for case in arguments.cases:
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name, *_ in ways}
        for _ in range(arguments.repetitions):
            for name, tool, sources in ways:
                found[name].append(measure(tool, case, arguments.seconds, sources))
        for name, results in found.items():
            rate, of_core, ready = (statistics.median(values) for values in zip(*results, strict=True))
            speeds = f"{rate:9.2f} clients/s  {of_core:9.2f} per CPU second"
            print(f"{case:10} {name:24} {speeds}   first round {ready:6.1f} s", flush=True)


if __name__ == "__main__":
    main()
