"""Measuring a device: numbers against NumPy, records that fleets can read, and both commands."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from measured_devices import TINY, FakeClock, free_port, quiet, running_server
from typer.testing import CliRunner

import fedarena.profiling.training as training_module
from fedarena.cli import main
from fedarena.core.device_record import parse_record
from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.models import MODELS, build_model, make_task
from fedarena.models.sizes import USUAL_DATA
from fedarena.profiling import ProfilePlan, profile_device
from fedarena.profiling.__main__ import main as plain_main
from fedarena.profiling.memory import MemoryWatch
from fedarena.profiling.network import NetworkProbe
from fedarena.profiling.statistics import summarize, time_calls
from fedarena.profiling.training import (
    HANDWRITING,
    MOLECULES,
    PHOTOS,
    RATINGS,
    TEXT,
    TWEETS,
    data_for,
    measure_model,
    random_batch,
    training_step,
)
from fedarena.train import LocalTraining

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
FEW = {"warmup": 1, "iterations": 3, "power_seconds": 0, "threads": 1}
# Everything beyond torch and numpy that the rest of FedArena needs.
HEAVY = ["pyarrow", "pydantic", "typer", "rich", "plotly", "sklearn", "pandas", "yaml", "safetensors", "filelock"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def no_power(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedarena.profiling.profile.find_power_meter", lambda device: None)


@pytest.fixture
def server() -> Iterator[str]:
    with running_server() as address:
        yield address


# ---------------------------------------------------------------- statistics


def test_summaries_are_those_of_numpy() -> None:
    values = np.random.default_rng(0).lognormal(size=57)
    found = summarize(values.tolist())
    expected = {
        "mean": np.mean(values),
        "std": np.std(values, ddof=1),
        "median": np.median(values),
        "p10": np.percentile(values, 10),
        "p90": np.percentile(values, 90),
        "min": np.min(values),
        "max": np.max(values),
    }
    assert found == pytest.approx(expected)
    assert summarize([2.0])["std"] is None


def test_a_call_takes_what_passes_on_the_clock_meanwhile() -> None:
    calls: list[int] = []
    # Looks at the clock are before and after a call; what passes between two calls does not count.
    seconds = time_calls(lambda: calls.append(1), 4, FakeClock(1000.0, 0.5, 1000.0, 0.25))
    assert seconds == [0.5, 0.25, 0.5, 0.25]
    assert len(calls) == 4


# ------------------------------------------------------------ training steps


def test_a_model_is_measured_by_the_clock() -> None:
    entry = measure_model(
        "logistic_regression",
        HANDWRITING,
        device=CPU,
        batch_size=8,
        warmup=2,
        iterations=4,
        meter=None,
        meter_seconds=1.0,
        progress=quiet,
        clock=FakeClock(7.0, 0.2, 7.0, 0.4),
    )
    assert entry["seconds_per_step"] == pytest.approx(summarize([0.2, 0.4, 0.2, 0.4]))
    assert entry["seconds_per_sample"]["mean"] == pytest.approx(0.3 / 8)
    assert entry["seconds_per_sample"]["p90"] == pytest.approx(0.4 / 8)
    inputs, classes = 28 * 28, 62
    assert entry["parameters"] == (inputs + 1) * classes
    # forward, and the gradient of the weights; nobody needs that of the inputs
    assert entry["flops_per_sample"] == 2 * 2 * inputs * classes
    assert entry["flops_per_second"] == pytest.approx(entry["flops_per_sample"] / (0.3 / 8))
    assert (entry["watts"], entry["joules_per_sample"], entry["gpu_memory_bytes"]) == (None, None, None)


class SteadyMeter:
    source = "battery"

    def __init__(self, watts: float | None):
        self.watts, self.log = watts, []

    def start(self) -> None:
        self.log.append("start")

    def stop(self) -> float | None:
        self.log.append("stop")
        return self.watts


@pytest.mark.parametrize("watts", [6.0, None])
def test_power_is_measured_after_the_steps_that_count(watts: float | None) -> None:
    meter = SteadyMeter(watts)
    shown: list[str] = []
    entry = measure_model(
        "logistic_regression",
        HANDWRITING,
        device=CPU,
        batch_size=2,
        warmup=0,
        iterations=3,
        meter=meter,
        meter_seconds=5.0,
        progress=lambda what, done, total: shown.append(what),
        clock=FakeClock(1.0),
    )
    assert meter.log == ["start", "stop"]
    assert shown.count("logistic_regression: training steps") == 3
    assert shown.count("logistic_regression: measuring power") == 4  # looks at 1, 2, 3 and 4 seconds are before the end
    assert entry["watts"] == watts
    assert entry["joules_per_sample"] == (None if watts is None else pytest.approx(6.0 * 1.0 / 2))


# Of those that are built quickly; all are tried in `make test-slow`.
LARGE = ("albert", "vgg11", "deepspeech_small", "speech_resnet34")


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE))
        for name in MODELS.names()
        if name not in ("resnet18", "vit", "huggingface")
    ],
)
def test_every_model_has_data_that_fits(name: str) -> None:
    spec = data_for(name)
    fitting = {
        "char_mlp": TEXT,
        "lstm": TEXT,
        "gru": TEXT,
        "transformer": TEXT,
        "bag_of_words": TWEETS,
        "bert_tiny": TWEETS,
        "albert": TWEETS,
        "matrix_factorization": RATINGS,
        "embedding_mlp": RATINGS,
        "dlrm": RATINGS,
        "gcn": MOLECULES,
        **{other: USUAL_DATA[other] for other in ("go_policy", "seq2seq", "deepspeech_small")},
        "speech": USUAL_DATA["speech_cnn"],
    } | dict.fromkeys(("resnet", "mobilenet", "shufflenet", "vgg", "vit", "pfl"), PHOTOS)
    assert spec is fitting.get(name, fitting.get(re.split(r"\d|_", name)[0], HANDWRITING))


def test_resnets_get_photos_and_unknown_models_a_sentence() -> None:
    assert data_for("resnet18") is PHOTOS
    with pytest.raises(BadInputError, match="no model called 'resnet81'; did you mean 'resnet18'"):
        data_for("resnet81")


def test_a_step_is_one_of_sgd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_module, "_TRAINING", LocalTraining(lr=0.5))
    seen: list[dict[str, torch.Tensor]] = []
    task = make_task(build_model("mlp", HANDWRITING, {"hidden": (5,)}, seed=0), HANDWRITING)
    loss = task.loss
    monkeypatch.setattr(task, "loss", lambda params, batch: (seen.append(params), loss(params, batch))[1])
    batch = random_batch(task, HANDWRITING, 6, CPU)
    step = training_step(task, batch, CPU)
    for _ in range(3):
        step()
    for before, after in pairwise(seen):
        gradients = torch.autograd.grad(loss(before, batch), list(before.values()))
        for name, gradient in zip(before, gradients, strict=True):
            torch.testing.assert_close(after[name], before[name] - 0.5 * gradient)
    assert batch["y"].unique().numel() > 1
    assert batch["x"].shape == (6, 1, 28, 28)


def test_a_model_that_does_not_fit_into_memory_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Callable[[], None]:
        raise RuntimeError("not enough\nmemory")

    monkeypatch.setattr(training_module, "training_step", fail)
    with pytest.raises(RunFailedError, match="'mlp' cannot be trained here with a batch size of 3: not enough memory"):
        measure_model(
            *("mlp", HANDWRITING),
            device=CPU,
            batch_size=3,
            warmup=0,
            iterations=1,
            meter=None,
            meter_seconds=0.0,
            progress=quiet,
        )


def test_operations_that_cannot_be_counted_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(task: Any) -> float:
        raise ImportError("No module named 'sympy'")

    monkeypatch.setattr(training_module, "count_training_flops", fail)
    entry = measure_model(
        "logistic_regression",
        HANDWRITING,
        device=CPU,
        batch_size=2,
        warmup=0,
        iterations=1,
        meter=None,
        meter_seconds=0.0,
        progress=quiet,
    )
    assert (entry["flops_per_sample"], entry["flops_per_second"]) == (None, None)
    assert entry["seconds_per_step"]["mean"] > 0


# -------------------------------------------------------------------- memory


def write_status(process: Path, held: int, peak: int) -> None:
    (process / "status").write_text(f"Name:\tpython\nVmHWM:\t{peak} kB\nVmRSS:\t{held} kB\n")


def test_memory_grows_from_what_was_held_to_the_peak(tmp_path: Path) -> None:
    (tmp_path / "clear_refs").write_text("")
    write_status(tmp_path, held=100, peak=900)
    watch = MemoryWatch(tmp_path)
    assert (tmp_path / "clear_refs").read_text() == "5"
    write_status(tmp_path, held=50, peak=700)
    assert watch.growth_bytes() == 600 * 1024


def test_an_earlier_peak_hides_a_lower_one(tmp_path: Path) -> None:
    (tmp_path / "clear_refs").mkdir()  # which cannot be written
    write_status(tmp_path, held=100, peak=900)
    watch = MemoryWatch(tmp_path)
    assert watch.growth_bytes() is None
    write_status(tmp_path, held=100, peak=1000)
    assert watch.growth_bytes() == 900 * 1024


def test_memory_of_this_process() -> None:
    watch = MemoryWatch()
    block = np.ones(100_000_000, dtype=np.uint8)
    grown = watch.growth_bytes()
    assert block.sum() == 100_000_000
    assert grown is None or grown > 90_000_000


# ------------------------------------------------------------ the whole record


def test_a_record_is_what_fleets_read(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedarena.profiling.profile.find_power_meter", lambda device: SteadyMeter(5.0))
    monkeypatch.setattr("fedarena.profiling.profile.QUICK_PLAN", TINY)
    file = tmp_path / "phone.json"
    options = FEW | {"power_seconds": 0.01, "quick": True, "batch_size": 4, "server": server, "name": "mine"}
    options["threads"] = 2
    plan = ProfilePlan.make(["logistic_regression", "char_mlp"], output=file, **options)
    threads = torch.get_num_threads()
    record = profile_device(plan, quiet)
    assert torch.get_num_threads() == threads
    assert json.loads(file.read_text()) == record
    parsed = parse_record(record)
    assert list(parsed.models) == ["logistic_regression", "char_mlp"]
    for entry in record["models"]:
        model = parsed.models[entry["model"]]
        assert model.seconds_per_sample == entry["seconds_per_sample"]["mean"] > 0
        assert (model.watts, model.batch_size, entry["iterations"]) == (5.0, 4, 3)
    assert len(parsed.download_bits_per_second) == len(parsed.upload_bits_per_second) == 3
    assert parsed.radio_watts == 5.0
    assert record["power"] == {"source": "battery", "idle_watts": 5.0}
    assert (record["name"], record["compute"]) == ("mine", {"device": "cpu", "threads": 2})
    assert socket.gethostname() not in file.read_text()
    assert server not in file.read_text()


def keys_of(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for entry in value.values() for key in keys_of(entry)}
    return {key for entry in value for key in keys_of(entry)} if isinstance(value, list) else set()


@pytest.mark.usefixtures("no_power")
def test_every_field_is_documented(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedarena.profiling.profile.QUICK_PLAN", TINY)
    plan = ProfilePlan.make(["logistic_regression"], output=tmp_path / "r.json", quick=True, server=server, **FEW)
    record = profile_device(plan, quiet) | {"power": {"source": "rapl", "idle_watts": 1.0}}
    documented = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "profiling.md").read_text()))
    assert keys_of(record) <= documented


@pytest.mark.usefixtures("no_power")
def test_a_server_that_is_not_there_is_found_out_first(tmp_path: Path) -> None:
    plan = ProfilePlan.make(output=tmp_path / "r.json", server=f"http://127.0.0.1:{free_port()}", **FEW)
    with pytest.raises(BadInputError, match="cannot be reached"):
        profile_device(plan, quiet)
    assert not (tmp_path / "r.json").exists()


@pytest.mark.usefixtures("no_power")
def test_what_was_measured_stays_if_the_network_fails(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: NetworkProbe, size: int) -> float:
        raise BadInputError("The server broke the connection")

    monkeypatch.setattr(NetworkProbe, "upload", fail)
    file = tmp_path / "r.json"
    plan = ProfilePlan.make(["logistic_regression"], output=file, quick=True, server=server, **FEW)
    with pytest.raises(BadInputError, match=rf"broke the connection; what was measured before is in {file}$"):
        profile_device(plan, quiet)
    record = json.loads(file.read_text())
    assert record["network"] is None
    assert list(parse_record(record).models) == ["logistic_regression"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"iterations": 0}, "--iterations must be at least 1, not 0"),
        ({"warmup": -1}, "--warmup must be at least 0, not -1"),
        ({"batch_size": 0}, "--batch-size must be at least 1, not 0"),
        ({"power_seconds": float("nan")}, "--power-seconds must be at least 0, not nan"),
        ({"threads": 0}, "--threads must be at least 1, not 0"),
        ({"threads": 5000}, "--threads must be at most 1024, not 5000"),
        ({"device": "cdua"}, "--device cannot be 'cdua'; did you mean 'cuda'"),
        ({"output": Path(".")}, "which is a folder; name a file"),
        ({"output": Path("nowhere/r.json")}, "which is in nowhere, which does not exist"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadInputError, match=re.escape(complaint)):
        ProfilePlan.make(**options)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(BadInputError, match="torch finds no CUDA GPU here"):
            ProfilePlan.make(device="cuda")


def test_defaults_are_a_hundred_steps() -> None:
    plan = ProfilePlan.make()
    assert (plan.warmup, plan.iterations) == (10, 100)
    assert set(plan.models) <= set(MODELS.names())
    assert ProfilePlan.make(["cnn", "mlp", "cnn"]).models == ("cnn", "mlp")


# ---------------------------------------------------------------- both faces


def call(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["profile-device", *arguments])
    assert result.exit_code == code, result.output
    if code == 2:
        assert result.stderr.startswith("Error: ")
        assert len(result.stderr.strip().splitlines()) == 1
    return result.output


@pytest.mark.usefixtures("no_power")
def test_the_command_shows_and_writes(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedarena.profiling.profile.QUICK_PLAN", TINY)
    output = call("logistic_regression", "--quick", "--threads", "1", "--server", server)
    assert "logistic_regression" in output
    assert "GFLOP/s" in output or "MFLOP/s" in output
    assert "Network: " in output
    assert "Record: device.json" in output
    assert parse_record(json.loads(Path("device.json").read_text())).upload_bits_per_second


def test_wrong_input_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "did you mean 'cnn'" in call("cnnn", code=2)
    assert "at least 1" in call("--iterations", "0", code=2)
    assert "cannot be reached" in call("--server", f"http://127.0.0.1:{free_port()}", code=2)
    assert "there may be a port, not 'cnn'" in call("cnn", "--serve", code=2)
    assert "from 0 to 65535" in call("--serve", "70000", code=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_power")
def test_times_that_vary_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_module, "time_calls", lambda call, times, clock: [next(seconds)])
    seconds = iter([0.1, 0.1, 5.0] + [0.1] * 3)
    options = ["--warmup", "0", "--iterations", "3", "-o", str(tmp_path / "r.json"), "logistic_regression"]
    assert "Times of logistic_regression vary a lot" in call(*options)
    assert "vary a lot" not in call(*options)


@pytest.mark.usefixtures("no_power")
def test_the_plain_face(
    tmp_path: Path, server: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedarena.profiling.profile.QUICK_PLAN", TINY)
    file = tmp_path / "r.json"
    few = ["--warmup", "0", "--iterations", "1", "--threads", "1", "--quick", "-o", str(file)]
    assert plain_main(["logistic_regression", *few, "--server", server]) == 0
    said = capsys.readouterr()
    assert re.search(r"logistic_regression: \S+ ms a step of 16 samples, \S+ GFLOP/s\nnetwork: ", said.out)
    assert "logistic_regression: training steps\n" in said.err
    assert plain_main(["nothing", *few]) == 2
    assert capsys.readouterr().err.startswith("Error: There is no model called 'nothing'")
    assert plain_main(["--serve", "1", "2"]) == 2


@pytest.mark.slow
def test_torch_and_numpy_are_enough(tmp_path: Path) -> None:
    program = f"""
import runpy, sys
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition('.')[0] in {HEAVY!r} else self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Hiding, sys.meta_path)
sys.argv = ['profiling', 'logistic_regression', '--quick', '--iterations', '2', '--threads', '1', '-o', 'r.json']
runpy.run_module('fedarena.profiling', run_name='__main__')
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Record: r.json" in done.stdout
    assert parse_record(json.loads((tmp_path / "r.json").read_text())).models
