"""Values of a JSON file, read on from where others stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedarena.data.many_users import json_stream
from fedarena.data.many_users.json_stream import JsonStream

VALUES = ["\xe9", "\u4f60\u597d", 12, ["\U0001f600", {"\xfc": None}], "plain", 3.5, "\xdf"]


@pytest.mark.parametrize("block_bytes", [1, 7, 1 << 22])
def test_reading_goes_on_at_any_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    monkeypatch.setattr(json_stream, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "values.json"
    path.write_text(json.dumps(VALUES, ensure_ascii=False), encoding="utf-8")
    with JsonStream(path, "JSON") as stream, JsonStream(path, "JSON") as other:
        stream.mark("[")
        for number, value in enumerate(VALUES):
            byte = stream.byte
            other.seek(byte)
            assert other.value() == stream.value() == value
            assert path.read_bytes()[byte : stream.byte].decode().strip() == json.dumps(value, ensure_ascii=False)
            assert stream.mark(",", "]") == ("]" if number == len(VALUES) - 1 else ",")
        stream.end()
