"""Archives of arrays."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fedarena.core.array_archives import read_arrays
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.images.arrays import load_array


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_changed_bit_is_no_other_number(save: Callable[..., None], tmp_path: Path) -> None:
    path = tmp_path / "some.npz"
    values, places = np.random.default_rng(0).random((3, 4)), np.arange(3)
    save(path, values=values, places=places)
    whole = path.read_bytes()
    sentences = []
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            found = read_arrays(path)
        except DamagedFileError as error:
            sentences.append(str(error))
        else:
            # The list of what is there has no checksum: something may be missing, or be called otherwise.
            assert (found.get("values", values) == values).all()
            assert (found.get("places", places) == places).all()
    assert len(sentences) > len(whole) / 2
    assert all("some.npz cannot be read, or is damaged" in sentence for sentence in sentences)


def test_no_damage_of_a_single_array_is_a_traceback() -> None:
    file = io.BytesIO()
    np.save(file, np.zeros((4, 4), dtype=np.float32))
    whole = file.getvalue()
    heads = [whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :] for place in range(128)]
    for content in (b"PK\x03\x04 nothing", b"", *heads):
        with suppress(DamagedFileError, BadInputError):
            load_array(io.BytesIO(content), "a picture")
