"""What clients of an algorithm send, without anybody training: to see its form."""

from __future__ import annotations

import torch

from fedarena.models import Tensors
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.jobs import newcomer
from fedarena.train.tensors import Groups


def example_update(algorithm: Algorithm, params: Tensors) -> Groups:
    """What a client uploads, to see its form: an update that changes nothing."""
    with torch.no_grad():
        broadcast = algorithm.broadcast(algorithm.server_init(params))
        client = newcomer(broadcast, algorithm.client_init(broadcast))
        one = torch.ones(())
        work = Work(one, one, one, one if algorithm.needs_start_loss else None)
        update, _ = algorithm.client_update(algorithm.local_start(client), client, work)
    return update
