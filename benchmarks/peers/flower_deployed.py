"""Flower's SuperLink and SuperNodes on this machine: rounds of a tiny model. Run by `deploy.py` in its environment.

    python benchmarks/peers/flower_deployed.py ROUNDS CLIENTS

The answer is one line of JSON: the seconds that the rounds took, by the clock of Flower's server program, from when all
its clients were there. Nothing is encrypted, since that is how Flower starts unless it is told otherwise.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = """[project]
name = "tiny"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr"]

[tool.flwr.app]
publisher = "benchmark"

[tool.flwr.app.components]
serverapp = "tiny.server:app"
clientapp = "tiny.client:app"

[tool.flwr.app.config]
rounds = {rounds}
clients = {clients}
answer = "{answer}"

[tool.flwr.federations]
default = "here"

[tool.flwr.federations.here]
address = "127.0.0.1:{link}"
insecure = true
"""
MODEL = """from torch import nn


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
"""
CLIENT = """import numpy as np
import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict, Message
from flwr.clientapp import ClientApp

from tiny.model import make

app = ClientApp()
torch.set_num_threads(1)


@app.train()
def train(message, context):
    random = np.random.default_rng(0)
    x = torch.from_numpy(random.random((40, 1, 8, 8), dtype=np.float32))
    y = torch.from_numpy(random.integers(0, 10, 40))
    module = make()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(2):
        rows = torch.randperm(40)[:8]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": 40})}
    return Message(RecordDict(content), reply_to=message)
"""
SERVER = """import json
import time
from pathlib import Path

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from tiny.model import make

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    while len(list(grid.get_node_ids())) < config["clients"]:
        time.sleep(0.1)
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=config["clients"])
    began = time.perf_counter()
    strategy.start(grid, ArrayRecord(make().state_dict()), num_rounds=config["rounds"])
    Path(config["answer"]).write_text(json.dumps({"seconds": time.perf_counter() - began}))
"""


def free_ports(number: int) -> list[int]:
    found = [socket.socket() for _ in range(number)]
    for one in found:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in found]
    for one in found:
        one.close()
    return ports


def main() -> None:
    rounds, clients = int(sys.argv[1]), int(sys.argv[2])
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "FLWR_TELEMETRY_ENABLED": "0"}
    with tempfile.TemporaryDirectory() as name:
        folder, answer = Path(name), Path(name) / "answer.json"
        environment["FLWR_HOME"] = str(folder / "home")
        link, *nodes = free_ports(1 + clients)
        package = folder / "app" / "tiny"
        package.mkdir(parents=True)
        project = PROJECT.format(rounds=rounds, clients=clients, answer=answer, link=link)
        (folder / "app" / "pyproject.toml").write_text(project)
        for file, text in (("__init__", ""), ("model", MODEL), ("client", CLIENT), ("server", SERVER)):
            (package / f"{file}.py").write_text(text)
        logs = open(folder / "log.txt", "w")  # noqa: SIM115
        own = ["--isolation", "subprocess", "--host", "127.0.0.1", "--port"]
        commands = [["flower-superlink", "--insecure", *own, str(link)]]
        commands += [
            ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}", *own, str(port)] for port in nodes
        ]
        processes = []
        try:
            for command in commands:
                processes.append(subprocess.Popen(command, env=environment, stdout=logs, stderr=logs))
                time.sleep(3.0)
            began = time.perf_counter()
            subprocess.run(
                ["flwr", "run", str(folder / "app"), "here"], env=environment, stdout=logs, stderr=logs, check=False
            )
            while not answer.exists() and time.perf_counter() - began < 400:
                time.sleep(0.1)
            if not answer.exists():
                sys.exit((folder / "log.txt").read_text()[-3000:])
            time.sleep(0.2)
            found = json.loads(answer.read_text())
        finally:
            for process in processes:
                process.terminate()
        from importlib.metadata import version

        print(json.dumps({**found, "rounds": rounds, "clients": clients, "version": version("flwr")}))


if __name__ == "__main__":
    main()
