"""Flower in the speed benchmark: its federated averaging simulated on Ray, one worker with one thread per core."""

from __future__ import annotations

import logging
import os

import torch
from flower_client import WORKLOAD_VARIABLE, app
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch_models import build_module, module_loss

from protocol import answer, available_cores, measure, read_arguments, workload_of

CORES = available_cores()


def main() -> None:
    arguments = read_arguments(__doc__)
    workload = workload_of(arguments)
    os.environ[WORKLOAD_VARIABLE] = f"{arguments.workload} {arguments.clients} {arguments.samples}"
    logging.getLogger("flwr").setLevel(logging.ERROR)
    results = []
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        module = build_module(workload.model)
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=len(workload.clients))
        arrays = ArrayRecord(module.state_dict())

        def run_rounds(rounds: int) -> None:
            nonlocal arrays
            arrays = strategy.start(grid, arrays, num_rounds=rounds).arrays

        def loss() -> float:
            module.load_state_dict(arrays.to_torch_state_dict())
            return module_loss(module, workload)

        results.append(measure("flower", "flwr", workload, arguments.seconds, run_rounds, loss))

    run_simulation(
        server,
        app,
        num_supernodes=len(workload.clients),
        backend_config={
            "init_args": {"num_cpus": CORES, "logging_level": logging.ERROR, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    (result,) = results
    answer({**result, "setting": f"{CORES} Ray workers, torch {torch.__version__}"})


if __name__ == "__main__":
    main()
