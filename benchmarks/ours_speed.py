"""FedArena in the speed benchmark: the simulation loop on a federation, with the engine as it is by default.

`--privacy gaussian` or `adaptive` adds clipping and noise at the server, with a fixed or an adapted clipping norm.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from fedarena.algorithms import FedAvg
from fedarena.data import ColumnSpec, Federation, FederationWriter, TaskSpec
from fedarena.models import Task, build_model, make_task
from fedarena.runs.opening import data_spec
from fedarena.simulate import RoundOutcome, Simulation, simulate
from fedarena.train import ENGINES, LocalTraining
from fedarena.transforms import ClipAndNoise
from fedarena.transforms.aggregators import FixedMean
from fedarena.transforms.clip_and_noise import Quantile
from protocol import answer, measure, read_arguments, workload_of
from workloads import Workload, initial_params

SEED = 0
CLIP_NORM, NOISE, QUANTILE = 1.0, 0.01, 0.1  # as for pfl


def write_federation(workload: Workload, path: Path) -> Federation:
    """The workload's clients as a federation."""
    model = workload.model
    if model.reads_text:
        task = TaskSpec(kind="next_token", classes=model.classes)
        columns = {"tokens": ColumnSpec(dtype="uint8", shape=(model.input_shape[0] + 1,))}
    else:
        task = TaskSpec(kind="classification", classes=model.classes)
        columns = {"x": ColumnSpec(dtype="float32", shape=model.input_shape), "y": ColumnSpec(dtype="int64")}
    with FederationWriter(path, name=workload.name, task=task, columns=columns) as writer:
        for number, (x, y) in enumerate(workload.clients):
            if model.reads_text:
                samples = {"tokens": torch.cat([torch.from_numpy(x), torch.from_numpy(y[:, -1:])], 1).byte().numpy()}
            else:
                samples = {"x": x, "y": y}
            writer.add_client(f"client {number}", train=samples)
    return Federation.open(path)


def build_task(workload: Workload, federation: Federation) -> Task:
    """The task with the workload's model and first parameters."""
    model, spec = workload.model, data_spec(federation)
    options = {
        "logistic_regression": {},
        "mlp": {"hidden": (model.hidden,)},
        "cnn": {"channels": model.channels, "hidden": model.hidden},
        "char_mlp": {"context": model.context, "embedding": model.embedding, "hidden": model.hidden},
        "lstm": {"embedding": model.embedding, "hidden": model.hidden, "layers": 1},
    }[model.kind]
    module = build_model(model.kind, spec, options, SEED)
    module.load_state_dict({name: torch.from_numpy(p) for name, p in initial_params(model).items()})
    return make_task(module, spec)


def private_parts(privacy: str, clients: int) -> dict[str, Any]:
    """What makes a simulation private."""
    if privacy == "none":
        return {}
    adaptive = Quantile(QUANTILE, 0.2, 0.1 * clients) if privacy == "adaptive" else None
    transform = ClipAndNoise(norm=CLIP_NORM, noise_multiplier=NOISE, clients=clients, adaptive=adaptive)
    return {"transforms": (transform,), "aggregator": FixedMean(clients)}


class Run:
    """A simulation that goes on as far as it is told."""

    def __init__(self, workload: Workload, federation: Federation, engine: str, privacy: str = "none", **options: Any):
        task, algorithm, everybody = build_task(workload, federation), FedAvg(), federation.clients("train")
        local = LocalTraining(epochs=1, batch_size=workload.batch_size, lr=workload.lr)
        algorithm.prepare(len(everybody), local)
        rounds = 1_000_000  # never reached; only the first model is evaluated by the loop itself
        self.simulation = Simulation(
            seed=SEED,
            rounds=rounds,
            cohort=len(everybody),
            task=task,
            algorithm=algorithm,
            engine=ENGINES.get(engine)(task, algorithm, local, federation, SEED, **options),
            training_clients=everybody,
            evaluation_clients=everybody,
            evaluation_part="train",
            evaluate_every=rounds,
            flops_per_sample=0,
            client_ids=federation.client_ids,
            **private_parts(privacy, len(everybody)),
        )
        self.outcomes = simulate(self.simulation)
        self.last: RoundOutcome = next(self.outcomes)

    def run_rounds(self, rounds: int) -> None:
        """So many more rounds."""
        for _ in range(rounds):
            self.last = next(self.outcomes)

    def loss(self) -> float:
        """Of the present model on all samples."""
        run = self.simulation
        params = run.algorithm.broadcast(self.last.snapshot.state)["params"]
        scores = run.engine.evaluate(params, run.evaluation_clients, run.evaluation_part)
        return scores.metrics["loss"].total


def main() -> None:
    arguments = read_arguments(__doc__, engine="cohort", privacy="none")
    workload = workload_of(arguments)
    with tempfile.TemporaryDirectory(prefix="fedarena-speed-") as folder:
        run = Run(
            workload, write_federation(workload, Path(folder) / "federation"), arguments.engine, arguments.privacy
        )
        tool = "fedarena" if arguments.engine == "cohort" else f"fedarena-{arguments.engine}"
        answer(measure(tool, "fedarena", workload, arguments.seconds, run.run_rounds, run.loss))


if __name__ == "__main__":
    main()
