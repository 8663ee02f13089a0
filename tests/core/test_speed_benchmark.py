"""The speed benchmark does the same work for all tools and reports what was measured. How fast anybody is, is not for
tests.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import warm_processes

ROOT = Path(__file__).parents[2]
MODULES = ("workloads", "protocol", "tools", "memory", "torch_models", "ours_speed", "speed_report", "speed")
WORKLOADS = ("logistic", "mlp", "cnn", "characters", "ragged", "lstm")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The benchmark's modules, which import each other as neighbours and are forgotten again afterwards."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "peers")
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    loaded = {name: importlib.import_module(name) for name in MODULES}
    for name, module in loaded.items():
        monkeypatch.setitem(sys.modules, name, module)
    return loaded


def test_ragged_sizes_are_log_normal(modules: dict[str, ModuleType]) -> None:
    sizes = modules["workloads"].log_normal_sizes(2000, 5000.0)
    assert sizes.mean() == pytest.approx(5000, rel=0.01)
    assert np.log(sizes[sizes > 1]).std() == pytest.approx(2, rel=0.05)
    small = modules["workloads"].make_workload("ragged").sizes
    assert len(small) == 50
    assert small.mean() == pytest.approx(50, rel=0.05)
    assert small.max() > 10 * small.mean()
    assert small.min() >= 1


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_the_same_every_time(modules: dict[str, ModuleType], name: str) -> None:
    make = modules["workloads"].make_workload
    first, again = make(name, 3, 7), make(name, 3, 7)
    assert len(first.clients) == 3
    for (x, y), (x_again, y_again) in zip(first.clients, again.clients, strict=True):
        assert (x == x_again).all()
        assert (y == y_again).all()
        assert x.shape[1:] == first.model.input_shape
        assert 0 <= y.min() <= y.max() < first.model.classes


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_peers_module_is_our_model(modules: dict[str, ModuleType], name: str, tmp_path: Path) -> None:
    ours_speed = modules["ours_speed"]
    workload = modules["workloads"].make_workload(name, 2, 3)
    task = ours_speed.build_task(workload, ours_speed.write_federation(workload, tmp_path / "federation"))
    peers = modules["torch_models"].build_module(workload.model)
    x = torch.from_numpy(workload.clients[0][0])
    torch.testing.assert_close(task.module(x), peers(x))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("engine", ["cohort", "reference"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_ours_does_what_plain_sgd_does(modules: dict[str, ModuleType], name: str, engine: str, tmp_path: Path) -> None:
    """One client and one batch, where nothing is left to chance; then the answer of a whole measurement."""
    make_workload, ours_speed = modules["workloads"].make_workload, modules["ours_speed"]
    single = make_workload(name, 1, 6)
    run = ours_speed.Run(single, ours_speed.write_federation(single, tmp_path / "single"), engine)
    torch_models = modules["torch_models"]
    module = torch_models.build_module(single.model)
    assert run.loss() == pytest.approx(torch_models.module_loss(module, single), rel=1e-4)
    optimizer = torch.optim.SGD(module.parameters(), lr=single.lr)
    x, y = map(torch.from_numpy, single.clients[0])
    torch_models.cross_entropy(module(x), y).backward()
    optimizer.step()
    run.run_rounds(1)
    assert run.loss() == pytest.approx(torch_models.module_loss(module, single), rel=1e-4)

    several = make_workload(name, 3, 4)
    run = ours_speed.Run(several, ours_speed.write_federation(several, tmp_path / "several"), engine)
    result = modules["protocol"].measure("ours", "fedarena", several, 0.0, run.run_rounds, run.loss)
    assert result["rounds"] == 3
    assert run.last.snapshot.round == 6  # with those that warm up
    assert result["final_loss"] < result["initial_loss"]
    assert result["samples_per_second"] == pytest.approx(3 * several.sizes.sum() / result["seconds"])
    assert result["clients_per_second"] == pytest.approx(3 * 3 / result["seconds"])


def test_measuring_goes_on_until_there_is_enough(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = modules["protocol"]
    workload = modules["workloads"].make_workload("logistic", 2, 3)
    clock, done = [0.0], []

    def run_rounds(rounds: int) -> None:
        done.append(rounds)
        clock[0] += rounds * (4.0 if len(done) == 2 else 1.0)  # the last round of the warm-up is slow

    monkeypatch.setattr(protocol.time, "perf_counter", lambda: clock[0])
    result = protocol.measure("x", "fedarena", workload, 10.0, run_rounds, lambda: 1.0)
    assert done[:3] == [2, 1, 3]
    assert sum(done[2:]) == result["rounds"] == result["seconds"] == 10
    assert result["clients_per_second"] == 2


def test_the_answer_is_found_among_other_output(
    modules: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    protocol = modules["protocol"]
    print("noise")
    protocol.answer({"peer": "x"})
    assert protocol.read_answer(capsys.readouterr().out) == {"peer": "x"}
    with pytest.raises(ValueError, match="found 0"):
        protocol.read_answer("noise")


def made_up(speeds: dict[str, dict[str, list[float]]], losses: dict[str, float] | None = None) -> dict[str, Any]:
    """Results with these clients per second; samples per second are fifty times as many."""
    runs = [
        {
            "peer": tool,
            "version": "1.2",
            "workload": workload,
            "clients_per_second": speed,
            "samples_per_second": 50 * speed,
            "initial_loss": 4.0,
            "final_loss": (losses or {}).get(tool, 3.0),
            "rounds": 3,
            "seconds": 1.0,
            "repetition": repetition,
        }
        for workload, tools in speeds.items()
        for tool, measured in tools.items()
        for repetition, speed in enumerate(measured)
    ]
    return {
        "command": "python benchmarks/speed.py",
        "environment": {
            "started": "2031-02-03T04:05:06+00:00",
            "versions": {"python": "3.11.0", "torch": "2.9"},
            "hardware": {"processor": "a fine processor", "cores": 2, "memory_bytes": 2**34},
        },
        "repetitions": 3,
        "workloads": {workload: f"what {workload} is" for workload in speeds},
        "runs": runs,
        "peak_bytes": {workload: dict.fromkeys(tools, 3 * 2**29) for workload, tools in speeds.items()},
        "failures": [],
    }


SPEEDS = {
    "mlp": {"fedarena": [200.0, 400.0, 300.0], "pfl": [100.0, 120.0, 110.0], "flower": [9.0, 11.0, 10.0]},
    "ragged": {"fedarena": [210.0, 240.0, 240.0], "pfl": [50.0, 60.0, 70.0]},
}


def test_ratios_of_medians(modules: dict[str, ModuleType]) -> None:
    heading, mlp, ragged = modules["speed_report"].speed_table(made_up(SPEEDS))
    assert heading[:4] == ["clients per second", "FedArena", "pfl-research", "Flower"]
    assert heading[4:] == ["FedArena / best peer", "FedArena / Flower"]
    assert mlp == ["mlp", "300", "110", "10", "2.73x", "30x"]
    assert ragged == ["ragged", "240", "60", "–", "4.00x", "–"]


def test_share_that_ragged_clients_leave(modules: dict[str, ModuleType]) -> None:
    report = modules["speed_report"]
    assert report.ragged_share(made_up(SPEEDS)) == pytest.approx(0.8)
    assert report.ragged_table(made_up(SPEEDS))[1] == ["FedArena", "15,000", "12,000", "80%"]
    assert report.ragged_share(made_up({"mlp": SPEEDS["mlp"]})) is None


@pytest.mark.parametrize(("loss", "agree"), [(3.05, True), (2.8, False), (3.5, False), (4.0, False)])
def test_somebody_who_leaves_work_out_is_found(modules: dict[str, ModuleType], loss: float, agree: bool) -> None:
    report = modules["speed_report"]
    results = made_up(SPEEDS, {"flower": loss})
    assert report.losses_agree(results, "mlp") is agree
    assert report.loss_table(results)[1][-1] == ("yes" if agree else "NO")


def test_page_shows_what_was_measured(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    speed, report = modules["speed"], modules["speed_report"]
    results = made_up(SPEEDS)
    page = report.render_page(results, 0.4, picture=True)
    for shown in ("2031-02-03", "a fine processor", "2 cores", "16 GiB", "| mlp | 300 | 110 | 10 | 2.73x | 30x |"):
        assert shown in page
    for shown in (
        "`python benchmarks/speed.py`",
        "images/speed.svg",
        "what ragged is",
        "67%",
        "| pfl-research | 1.2 |",
        "| ragged | 1.50 | 1.50 | – |",
    ):
        assert shown in page
    bars = report.draw(results).data
    assert [(bar.name, list(bar.y)) for bar in bars][1:] == [("pfl-research", [110, 60]), ("Flower", [10, None])]

    data = speed.data_path(tmp_path)
    data.parent.mkdir()
    data.write_text(json.dumps(results))
    speed.write_picture = lambda figure, path: path
    speed.write_page(tmp_path)
    assert (tmp_path / "speed.md").read_text() == report.render_page(results, speed.largest_share(), picture=True)


def test_the_documentation_agrees_with_the_measured_file(modules: dict[str, ModuleType]) -> None:
    speed, report = modules["speed"], modules["speed_report"]
    docs = ROOT / "docs"
    data = speed.data_path(docs)
    results = json.loads(data.read_text(encoding="utf-8")) if data.exists() else None
    picture = report.picture_path(docs).exists()
    expected = report.render_page(results, speed.largest_share(), picture)
    assert (docs / "speed.md").read_text(encoding="utf-8") == expected


def test_a_tool_that_fails_is_reported(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speed = modules["speed"]
    good = made_up(SPEEDS)["runs"][0]

    def run_tool(python: str, tool: str, workload: str, seconds: float) -> dict[str, Any]:
        if tool == "flower":
            raise RuntimeError("no ray today")
        return {**good, "peer": tool, "workload": workload}

    monkeypatch.setattr(speed, "BENCH", tmp_path)
    monkeypatch.setattr(speed, "run_tool", run_tool)
    monkeypatch.setattr(speed, "peak_memory", lambda python, tool, workload: 2**30)
    monkeypatch.setattr(speed, "prepare_environment", lambda tool, folder, say: sys.executable)
    monkeypatch.setattr(speed, "write_picture", lambda figure, path: path)
    monkeypatch.setattr(speed.os, "getloadavg", lambda: (0.75, 0.0, 0.0))
    monkeypatch.setattr(sys, "argv", ["speed.py", "--tools", "fedarena", "flower", "--workloads", "mlp"])
    assert speed.main() == 1
    output = capsys.readouterr().out
    assert "the load average is 0.75" in output
    assert "Flower failed on mlp: no ray today" in output
    written = json.loads((tmp_path / "partial" / "benchmarks" / "speed.json").read_text())
    assert [run["peer"] for run in written["runs"]] == ["fedarena"] * 3
    assert len(written["failures"]) == 3


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the system does not tell")
def test_memory_is_that_of_a_process_and_of_those_it_starts(modules: dict[str, ModuleType]) -> None:
    takes = "taken = b'x' * 40_000_000"
    waits = f"import time; {takes}; time.sleep(0.6)"
    starts = f"import subprocess, sys; {takes}; subprocess.run([sys.executable, '-c', {waits!r}]); print('done')"
    alone, both = (modules["memory"].run_watched([sys.executable, "-c", program]) for program in (waits, starts))
    assert both[0].stdout == "done\n"
    assert 40e6 < alone[1] < 70e6
    assert 80e6 < both[1] < 130e6


@pytest.mark.slow
def test_a_measurement_in_a_process_of_its_own(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    speed, tools = modules["speed"], modules["tools"]
    monkeypatch.setattr(speed, "BENCH", tmp_path)
    monkeypatch.setattr(subprocess, "run", warm_processes.run)
    small = tools.Tool("FedArena", "ours_speed.py", arguments=("--clients", "2", "--samples", "3"))
    monkeypatch.setitem(tools.TOOLS, "fedarena", small)
    result = speed.run_tool(sys.executable, "fedarena", "logistic", 0.01)
    assert (result["peer"], result["workload"]) == ("fedarena", "logistic")
    broken = tools.Tool("FedArena", "ours_speed.py", arguments=("--engine", "steam"))
    monkeypatch.setitem(tools.TOOLS, "fedarena", broken)
    with pytest.raises(RuntimeError, match="steam"):
        speed.run_tool(sys.executable, "fedarena", "logistic", 0.01)
