from __future__ import annotations

import pytest

from fedarena.core.errors import BadInputError
from fedarena.core.registry import Registry

PARTS: Registry[object] = Registry("gadget")


def test_a_path_gives_the_thing_itself() -> None:
    assert PARTS.get("fedarena.core.registry:Registry") is Registry


@pytest.mark.parametrize("path", [":x", "..:C", "os:", "os:nothing", "nowhere.at.all:C", "os:path:join"])
def test_paths_to_nothing_are_refused(path: str) -> None:
    with pytest.raises(BadInputError, match=f"Cannot import the gadget '{path}', .*'package.module:Name'"):
        PARTS.get(path)


@pytest.mark.parametrize(("path", "kind"), [("os:path", "module"), ("os:name", "str")])
def test_what_cannot_be_called_is_refused(path: str, kind: str) -> None:
    with pytest.raises(BadInputError, match=f"'{path}' must be a class or a function, but it is a {kind}"):
        PARTS.get(path)


def test_what_hides_its_parameters_is_refused() -> None:
    with pytest.raises(BadInputError, match="'builtins:int' cannot be used as gadget: its options cannot be read"):
        PARTS.get("builtins:int")
