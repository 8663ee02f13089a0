"""The client of the Flower benchmark, in a module of its own so that workers import it instead of unpickling it."""

from __future__ import annotations

import functools
import os

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch_models import build_module, cross_entropy

from workloads import Workload, make_workload

WORKLOAD_VARIABLE = "SPEED_WORKLOAD"  # name, clients and samples, for the workers

app = ClientApp()


@functools.cache
def prepare() -> tuple[Workload, nn.Module, list[tuple[Tensor, Tensor]]]:
    """What a worker makes once: the workload, a module to train in, and the clients' tensors."""
    torch.set_num_threads(1)  # a worker has one core
    name, clients, samples = os.environ[WORKLOAD_VARIABLE].split()
    workload = make_workload(name, int(clients), int(samples))
    data = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in workload.clients]
    return workload, build_module(workload.model), data


@app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch of SGD from the parameters in the message."""
    workload, module, data = prepare()
    x, y = data[int(context.node_config["partition-id"])]
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=workload.lr)
    for rows in torch.randperm(len(y)).split(workload.batch_size):
        optimizer.zero_grad()
        cross_entropy(module(x[rows]), y[rows]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
