"""The examples of plug-ins: each runs on both engines with the same result, and the page counts their lines right."""

from __future__ import annotations

import ast
import importlib
import io
import re
import tokenize
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedarena
from fedarena.runs.merging import merge

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "plugins"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))
SMALL: dict[str, Any] = {
    "federation": {"name": "digits", "partition": {"name": "iid", "clients": 30}},
    "model": "logistic_regression",
    "rounds": 2,
    "cohort": 4,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_does_the_same_on_both_engines(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    example = importlib.import_module(name)
    losses = []
    for engine in ("reference", "cohort"):
        settings = merge(merge({}, SMALL), example.SETTINGS) | {"engine": {"name": engine, "dtype": "float64"}}
        run = fedarena.run(settings, name=engine, runs_folder=tmp_path, progress=False)
        losses.append(run.summary["final"]["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=0, atol=1e-9)


def code_lines(source: str) -> int:
    """Lines that are code: neither empty, nor comments, nor descriptions."""
    nothing = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in nothing:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def plug_in(source: str) -> str:
    """The first class or function of an example, which is what a user writes; what runs it is the same everywhere."""
    first = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return ast.get_source_segment(source, first) or ""


def test_the_page_counts_lines_right() -> None:
    page = (ROOT / "docs" / "plugins.md").read_text()
    told = dict(re.findall(r"`examples/plugins/(\w+)\.py` \| (\d+) \|", page))
    counted = {name: str(code_lines(plug_in((FOLDER / f"{name}.py").read_text()))) for name in EXAMPLES}
    assert told == counted
