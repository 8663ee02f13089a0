"""What is imported when, by looking at what has been imported; speed itself is measured by benchmarks/whole_runs.py."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import fedarena
from fedarena import display
from fedarena.cli.start_up import without_collecting
from fedarena.core.later import later

# Each takes a tenth of a second to seconds to import.
LARGE = ("torch", "numpy", "scipy", "pyarrow", "pandas", "plotly", "sklearn", "networkx", "optuna", "ray")


def imported_by(code: str) -> set[str]:
    """The modules that a new process has imported after it ran some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('MODULES', *sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.rpartition("MODULES")[2].split())


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["hpo", "--help"], ["--version"]])
def test_help_imports_no_large_library(arguments: list[str]) -> None:
    found = imported_by(f"from fedarena.cli import main\nmain({arguments!r}, standalone_mode=False)")
    assert "fedarena.cli.runs" in found
    assert not found.intersection(LARGE)


@pytest.mark.slow
def test_a_run_begins_without_what_only_comparisons_and_reports_need() -> None:
    found = imported_by("import fedarena.display.running, fedarena.runs.run, fedarena.api")
    assert "torch" in found
    assert not found.intersection(("scipy", "scipy.stats", "scipy.sparse", "pandas", "plotly", "sklearn", "networkx"))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["cohort", "reference"])
def test_a_run_on_a_cpu_needs_no_compiler(engine: str, tmp_path: Path) -> None:
    settings = {"federation": "digits", "rounds": 2, "engine": {"name": engine, "device": "cpu"}}
    found = imported_by(f"import fedarena\nfedarena.run({settings!r}, runs_folder={str(tmp_path)!r}, progress=False)")
    assert "torch" in found
    assert "torch._dynamo" not in found


@pytest.mark.parametrize("module", [fedarena, display])
def test_names_are_found_where_they_are_said_to_be(module: object) -> None:
    names = module.__all__  # type: ignore[attr-defined]
    assert dir(module) == sorted(names)
    assert all(getattr(module, name) is not None for name in names)
    assert set(display._HOME_OF) == set(display.__all__)
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        module.no_such_name  # type: ignore[attr-defined]  # noqa: B018


def test_a_module_is_imported_when_it_is_first_used() -> None:
    found = imported_by("from fedarena.core.later import later\nmodule = later('colorsys')")
    assert "colorsys" not in found
    found = imported_by("from fedarena.core.later import later\nlater('colorsys').rgb_to_hsv(1, 0, 0)")
    assert "colorsys" in found
    assert later("math").sqrt(4) == 2
    with pytest.raises(AttributeError):
        later("math").no_such_function  # noqa: B018


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_after_imports_as_it_was_before(enabled: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with suppress(ZeroDivisionError), without_collecting():
            assert not gc.isenabled()
            raise ZeroDivisionError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
