"""The model that a run has trained, as a module of torch and as a file."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
from torch import nn

from fedarena.algorithms import ALGORITHMS
from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.core.files import replacing
from fedarena.models import Tensors
from fedarena.runs.building import build_task, open_federation
from fedarena.runs.config import RunConfig, read_settings, resolve
from fedarena.runs.observer import Observer
from fedarena.runs.weights import read_weights
from fedarena.simulate import ClientStates
from fedarena.storage.checkpoint import read_snapshot, read_state
from fedarena.storage.run_files import CONFIG_FILE, RunFiles
from fedarena.train import Algorithm


def trained_model(folder: Path) -> nn.Module:
    """The global model of a run after its last finished round, built as the run built it."""
    params = read_weights(folder)
    RunFiles.open(folder).check_first_files()
    federation, config = open_federation(resolve(read_settings(folder / CONFIG_FILE)), Observer())
    params |= _evaluated(config, folder)
    module = build_task(config, federation).module
    module.to(next(iter(params.values())).dtype)
    missing, unknown = module.load_state_dict(params, strict=False)
    absent = {name for name, _ in module.named_parameters()} & set(missing)
    if unknown or absent:
        names = ", ".join(sorted({*unknown, *absent}))
        raise BadInputError(f"The parameters of {folder} are not those of its model any more: {names}")
    return module.eval()


def _evaluated(config: RunConfig, folder: Path) -> Tensors:
    """The parameters that were scored, if an algorithm of somebody's own scores others than the server's."""
    kind = ALGORITHMS.get(config.algorithm["name"])
    if kind.evaluation_params is Algorithm.evaluation_params:
        return {}
    options = {name: value for name, value in config.algorithm.items() if name != "name"}
    committed = read_state(folder)
    assert committed is not None, "its parameters could be read"
    return kind(**options).evaluation_params(read_snapshot(folder, committed, ClientStates()).state)


def export_model(folder: Path, path: Path) -> nn.Module:
    """Writes the parameters of a run's model, and its buffers, as a safetensors file."""
    if path.suffix != ".safetensors":
        raise BadInputError(f"The model cannot be written as {path.name!r}; end the name with .safetensors")
    if path.exists():
        raise BadInputError(f"{path} exists; choose another name, or remove it")
    module = trained_model(folder)
    tensors = {name: t.contiguous().clone() for name, t in module.state_dict().items()}
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(safetensors.torch.save(tensors, {"format": "pt", "run": folder.name}))
    except OSError as error:
        raise RunFailedError(f"Cannot write {path}: {error.strerror or error}") from error
    return module
