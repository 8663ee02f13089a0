"""What settings from a server may not do on a device: import code that its user has not allowed, or read its files."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from fedarena.algorithms import ALGORITHMS
from fedarena.core.errors import BadInputError
from fedarena.core.files import fingerprint_of
from fedarena.core.outside_text import quoted
from fedarena.core.registry import FileName, Registry
from fedarena.models import ADAPTATIONS, AUGMENTATIONS, MODELS, TASKS

# The parts that devices build, besides transforms, by the names of settings.
DEVICE_PARTS: dict[str, Registry[Any]] = {
    "model": MODELS,
    "task": TASKS,
    "algorithm": ALGORITHMS,
    "adaptation": ADAPTATIONS,
    "augmentation": AUGMENTATIONS,
}
_OF_LIBRARIES = ("huggingface",)  # models that are read from a folder, by a library that devices do not have


def refuse_parts_of_strangers(settings: Mapping[str, Any], allow: Sequence[str]) -> None:
    """Refuses settings that name a part in a package which the user of this device has not allowed.

    Whatever has a colon would be imported somewhere, so no other text in settings may have one.
    """
    for name in _texts({key: value for key, value in settings.items() if key != "data"}):
        module, colon, _ = name.partition(":")
        if colon and not any(module == allowed or module.startswith(f"{allowed}.") for allowed in allow):
            raise BadInputError(
                f"The run uses {quoted(name)}, which is not a part of FedArena; if you trust that code on this device, "
                f"start the client with --allow {module.partition('.')[0]}"
            )


def refuse_other_sources(sources: Mapping[str, str]) -> None:
    """Refuses modules of somebody's own that are not those of the server: this device would train something else.

    `sources` has their fingerprints; those that only the server uses are not imported here.
    """
    for name, fingerprint in sources.items():
        path = getattr(sys.modules.get(name), "__file__", None)
        if path is not None and fingerprint_of(Path(path).read_bytes()) != fingerprint:
            raise BadInputError(
                f"The module {quoted(name)} is not the same here as at the server, so this device would train "
                f"something else; put the server's file in the place of {path}"
            )


def refuse_files(settings: Mapping[str, Any]) -> None:
    """Refuses options that name files: devices do not have those of the server, and theirs are none of its business."""
    for part, registry in DEVICE_PARTS.items():
        name = settings[part]["name"]
        if name in _OF_LIBRARIES:
            raise BadInputError(f"{part}={name} needs a library and a folder that devices do not have; choose another")
        kind = registry.get(name)
        hints = get_type_hints(kind.__init__ if inspect.isclass(kind) else kind, include_extras=True)
        for option, hint in hints.items():
            names_file = any(isinstance(one, FileName) for one in get_args(hint))
            if names_file and settings[part].get(option) is not None:
                raise BadInputError(f"{part}.{option} names a file, which devices do not have; leave it out")


def _texts(value: Any) -> Iterator[str]:
    """All texts in nested settings, also the names of what is set."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _texts(key)
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
