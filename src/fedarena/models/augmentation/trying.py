"""Trying out an augmentation of somebody's own before a run begins."""

from __future__ import annotations

import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.core.seeding import other_generators, seeded
from fedarena.models.augmentation.base import Augmentation, NoAugmentation, sample_keys
from fedarena.models.spec import DataSpec

_SAMPLES = 3


def try_out_augmentation(
    augmentation: Augmentation, spec: DataSpec, seen: DataSpec, name: str, dtype: torch.dtype = torch.float32
) -> None:
    """Refuses one that gives another form than it says, draws from anything but keys, or mixes or overwrites samples.

    `dtype` is the type of numbers that the run computes with.
    """
    if isinstance(augmentation, NoAugmentation):
        return
    x = torch.rand(_SAMPLES, *spec.input_shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    keys = sample_keys(torch.zeros((), dtype=torch.int64), _SAMPLES)
    wanted = torch.Size([_SAMPLES, *seen.input_shape])
    for step in ("training", "evaluation"):
        generators = other_generators()

        def augmented(some: slice, seed: int, step: str = step) -> Tensor:
            given = x[some].clone()
            try:
                with seeded(seed), torch.no_grad():
                    training = step == "training"
                    found = augmentation.training(given, keys[some]) if training else augmentation.evaluation(given)
            except Exception as error:  # somebody's own can fail in any way
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                raise BadInputError(f"augmentation={name} does not work on {spec}: {step}: {reason:.200}") from error
            if not torch.equal(given, x[some]):
                raise BadInputError(
                    f"augmentation={name}: {step} overwrites the samples that it is given, which others still need; "
                    "give new ones (x = x * 2 instead of x *= 2)"
                )
            return found

        everything = slice(None)
        found, again, alone = augmented(everything, 0), augmented(everything, 1), augmented(slice(1, 2), 0)
        if not isinstance(found, Tensor) or found.shape != wanted or found.dtype != x.dtype:
            form = f"{list(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
            raise BadInputError(
                f"augmentation={name}: {step} gives {form} for {_SAMPLES} samples, but {list(wanted)} of {x.dtype} is "
                "needed; `shape` says what comes of a sample"
            )
        if not torch.equal(found, again) or other_generators() != generators:
            raise BadInputError(
                f"augmentation={name}: {step} gives something else when it is called again; draw from the keys of "
                "samples alone, with fedarena.models.keyed_random"
            )
        if not torch.allclose(found[1:2], alone):
            raise BadInputError(
                f"augmentation={name}: what {step} makes of a sample depends on the others in the batch; each must be "
                "augmented by itself, with its own key"
            )
