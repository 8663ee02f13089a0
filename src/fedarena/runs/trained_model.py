"""The model that a run has trained, or a client's own, as a module of torch and as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from torch import nn

from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.core.files import replacing
from fedarena.core.registry import nearest
from fedarena.core.user_warnings import warn_user
from fedarena.core.words import some
from fedarena.models import Task, Tensors
from fedarena.models.adaptation import merge_low_rank
from fedarena.runs.building import build_task, prepare
from fedarena.runs.config import RunConfig, read_settings, resolve
from fedarena.runs.identity import check_same_answers
from fedarena.runs.observer import Observer
from fedarena.runs.opening import open_federation
from fedarena.runs.own_source import changed_source_of
from fedarena.runs.plain_torch import plain_torch
from fedarena.runs.weights import read_weights, safetensors_bytes
from fedarena.simulate import ClientStates
from fedarena.storage.checkpoint import open_client_states, read_best, read_snapshot, read_state
from fedarena.storage.run_files import CONFIG_FILE, RunFiles, read_constants

Which = Literal["last", "best"]


@plain_torch()
def trained_model(folder: Path, which: Which = "last", client: str | None = None) -> nn.Module:
    """The global model of a run after its last finished round, or the best one; or the model of a client alone.

    It is built as the run built it, in evaluation mode; what LoRA learned is in the weights of plain layers.
    """
    RunFiles.open(folder).check_first_files()
    config = resolve(read_settings(folder / CONFIG_FILE))
    changed = changed_source_of(config, folder)
    if changed:
        warn_user(f"{some(changed)} changed since the run {folder} began: the model is built as it is there now")
    if client is not None:
        if which != "last":
            raise BadInputError("Models of clients are kept as they are after the last round only; leave 'best' out")
        task, params = _personal_model(folder, config, client)
        return _trained(task, params, folder, is_as_before=not changed)
    if which not in ("last", "best"):
        raise BadInputError(f"which must be 'last' or 'best', not {which!r}")
    params = read_weights(folder) if which == "last" else _best_params(folder)
    federation, config = open_federation(config, Observer())
    return _trained(build_task(config, federation), params, folder, is_as_before=not changed)


def _trained(task: Task, params: Tensors, folder: Path, is_as_before: bool) -> nn.Module:
    """The task's model with these parameters; it must be the one that they were trained in, if its source is."""
    module = task.module
    dtypes = [p.dtype for p in params.values() if p.is_floating_point()]  # buffers may be of whole numbers
    module.to(dtypes[0])
    missing, unknown = module.load_state_dict(params, strict=False)
    absent = {name for name, p in module.named_parameters() if p.requires_grad} & set(missing)
    if unknown or absent:
        names = ", ".join(sorted({*unknown, *absent}))
        raise BadInputError(f"The parameters of {folder} are not those of its model any more: {names}")
    if is_as_before:
        check_same_answers(task, folder, "be used")
    return merge_low_rank(module.eval())


def _best_params(folder: Path) -> Tensors:
    state = read_state(folder)
    if state is None or state.best is None:
        raise BadInputError(f"The run {folder} did not keep its best model; run it with keep=best")
    return read_best(folder, state.best)


def _personal_model(folder: Path, config: RunConfig, client: str) -> tuple[Task, Tensors]:
    """What a client would use, as it is evaluated: kept, chosen among several, or fine-tuned first."""
    experiment = prepare(config, Observer())
    simulation, federation = experiment.simulation, experiment.federation
    if not simulation.algorithm.personalizes:
        raise BadInputError(
            f"{config.algorithm['name']} has no models of clients, only the global one; leave client out"
        )
    ids = federation.client_ids(np.arange(federation.num_clients))
    if client not in ids:
        raise BadInputError(f"There is no client {client!r} in {federation.name}; {nearest(client, ids[:1000])}")
    state = read_state(folder)
    if state is None:
        raise BadInputError(f"The run {folder} has no finished round yet")
    states = ClientStates()
    states.keep_in(open_client_states(folder, state), config.client_states_ram_bytes)
    snapshot = read_snapshot(folder, state, states).placed(simulation.engine.place)
    broadcast = simulation.algorithm.broadcast(snapshot.state)
    params = simulation.engine.personal_model(
        broadcast, snapshot.client_states, ids.index(client), simulation.evaluation_part, snapshot.round
    )
    kept = read_constants(RunFiles.open(folder)) | {name: t.cpu() for name, t in params.items()}
    simulation.task.module.cpu()
    return simulation.task, kept


def export_model(folder: Path, path: Path, which: Which = "last", client: str | None = None) -> nn.Module:
    """Writes the parameters of a run's model, and its buffers, as a safetensors file."""
    if path.suffix != ".safetensors":
        raise BadInputError(f"The model cannot be written as {path.name!r}; end the name with .safetensors")
    if path.exists():
        raise BadInputError(f"{path} exists; choose another name, or remove it")
    module = trained_model(folder, which, client)
    tensors = {name: t.contiguous().clone() for name, t in module.state_dict().items()}
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(safetensors_bytes(tensors, {"run": folder.name}))
    except OSError as error:
        raise RunFailedError(f"Cannot write {path}: {error.strerror or error}") from error
    return module
