"""Kernels of our own for CPUs: what plain operations compute, whoever else is there; and what happens without them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import config, content
from test_cohort import ClientsInMemory, assert_same, make_engine, train
from test_wide_products import LAYOUTS, assert_product, random
from torch import Tensor

from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.models import DataSpec, build_model, make_task
from fedarena.runs.run import resume_run, start_run
from fedarena.storage.run_data import load_run
from fedarena.train import CohortEngine, LocalTraining, ReferenceEngine, suitable
from fedarena.train.native import library, why_absent
from fedarena.train.native.lstm import lstm_steps, lstm_steps_back
from fedarena.train.native.products import products_of_lanes, subtract_products
from fedarena.train.recurrence import plain_lstm_steps, plain_lstm_steps_back

# Where they could be made, and are absent all the same, tests fail.
COULD_BE_MADE = (
    sys.platform == "linux"
    and platform.machine() in ("x86_64", "aarch64")
    and shutil.which("cc") is not None
    and tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 7)
)
pytestmark = pytest.mark.skipif(not COULD_BE_MADE, reason="there is no C compiler, or torch has no interface for it")

LAYOUT = st.sampled_from(list(LAYOUTS))


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    assert why_absent() is None


@settings(max_examples=150, deadline=None)
@given(
    lanes=st.sampled_from([1, 3]),
    rows=st.integers(0, 40),
    depth=st.sampled_from([0, 1, 7, 31, 128, 130, 256, 300]),
    columns=st.sampled_from([0, 1, 3, 16, 33, 48, 64, 65, 130]),
    of_left=LAYOUT,
    of_right=LAYOUT,
)
def test_products_are_those_of_plain_torch(lanes, rows, depth, columns, of_left, of_right) -> None:
    left, right = LAYOUTS[of_left](random(lanes, rows, depth)), LAYOUTS[of_right](random(lanes, depth, columns))
    found = products_of_lanes(left, right)
    expected = left.double() @ right.double()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)
    assert found.shape == (lanes, rows, columns)
    assert found.is_contiguous()


def test_lanes_that_share_a_matrix() -> None:
    left, right = random(3, 40, 50), random(50, 60)
    assert_product(products_of_lanes(left, right.expand(3, 50, 60)), left, right)
    assert_product(products_of_lanes(left, right.t().contiguous().t().expand(3, 50, 60)), left, right)


@settings(max_examples=60, deadline=None)
@given(
    lanes=st.sampled_from([1, 3]),
    rows=st.integers(1, 70),
    depth=st.integers(0, 40),
    columns=st.integers(1, 70),
    of_left=LAYOUT,
    of_right=LAYOUT,
    of_weights=st.sampled_from(["in order", "turned", "part of a wider one"]),
)
def test_products_are_subtracted(lanes, rows, depth, columns, of_left, of_right, of_weights) -> None:
    left, right = LAYOUTS[of_left](random(lanes, rows, depth)), LAYOUTS[of_right](random(lanes, depth, columns))
    weights = LAYOUTS[of_weights](random(lanes, rows, columns))
    expected = weights.double() - 0.3 * (left.double() @ right.double())
    subtract_products(weights, left, right, 0.3)
    torch.testing.assert_close(weights.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("of_right", ["in order", "turned"])
@pytest.mark.parametrize("depth", [40, 300])
def test_a_row_has_the_same_bits_whoever_else_is_there(of_right: str, depth: int) -> None:
    left, right = random(4, 23, depth), LAYOUTS[of_right](random(4, depth, 70))
    together = products_of_lanes(left, right)
    for lane in range(4):
        for row in (0, 7, 22):
            alone = products_of_lanes(left[lane : lane + 1, row : row + 1], right[lane : lane + 1])
            assert torch.equal(alone[0, 0], together[lane, row])
    assert torch.equal(products_of_lanes(left, right), together)


@pytest.mark.parametrize("strange", [torch.nan, torch.inf, -torch.inf])
def test_nothing_is_lost_that_is_not_finite(strange: float) -> None:
    left, right = random(1, 6, 300), random(1, 300, 20)
    left[0, 2, 5] = strange
    for layout in ("in order", "turned"):
        found = products_of_lanes(left, LAYOUTS[layout](right))
        assert torch.equal(found.isfinite().all(2)[0], torch.arange(6) != 2)
    layer = of_layer(2, 3, 4, 5)
    layer["gates"][1, 1, 2, 4] = strange
    expected, found = plain_lstm_steps(**layer), lstm_steps(**layer)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.isnan(), other.isnan())


def of_layer(
    lanes: int, length: int, samples: int, width: int, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    return {
        "gates": random(lanes, length, samples, 4 * width).to(dtype),
        "weight": random(lanes, 4 * width, width).to(dtype) / width**0.5,
        "hidden": random(lanes, samples, width).to(dtype),
        "cell": random(lanes, samples, width + 1)[..., 1:].to(dtype),
    }


@settings(max_examples=60, deadline=None)
@given(
    lanes=st.integers(1, 3),
    length=st.integers(1, 9),
    samples=st.integers(1, 13),
    width=st.sampled_from([1, 2, 15, 16, 17, 33, 64, 70]),
    samples_first=st.booleans(),
    large=st.booleans(),
)
def test_lstm_layers_and_their_gradients_are_those_of_plain_torch(
    lanes, length, samples, width, samples_first, large
) -> None:
    layer = of_layer(lanes, length, samples, width)
    if samples_first:  # in memory
        layer["gates"] = layer["gates"].transpose(1, 2).contiguous().transpose(1, 2)
    if large:  # most gates are open or closed
        layer["gates"] *= 40
    grads = random(lanes, length + 1, samples, width), random(lanes, samples, width)
    states, *kept = lstm_steps(**layer)
    found = [states, *kept, *lstm_steps_back(*grads, layer["weight"], *kept)]
    exact = {name: t.double() for name, t in layer.items()}
    states, *kept = plain_lstm_steps(**exact)
    expected = [states, *kept, *plain_lstm_steps_back(*(g.double() for g in grads), exact["weight"], *kept)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


def test_functions_are_exact_to_a_few_digits_more_than_torch_s() -> None:
    gates = torch.cat([torch.linspace(-110, 110, 4001), torch.linspace(-1, 1, 4001), torch.logspace(-30, 0, 500)])
    width = len(gates)
    layer = {
        "gates": gates.repeat(4).view(1, 1, 1, -1),
        "weight": torch.zeros(1, 4 * width, width),
        "hidden": torch.zeros(1, 1, width),
        "cell": torch.zeros(1, 1, width),
    }
    _, _, opened, _ = lstm_steps(**layer)
    enter, _, candidate, _ = opened.view(4, width)
    torch.testing.assert_close(enter.double(), gates.double().sigmoid(), rtol=3e-7, atol=1e-37)
    torch.testing.assert_close(candidate.double(), gates.double().tanh(), rtol=3e-7, atol=0)


def test_memory_of_tensors_is_given_back() -> None:
    import resource

    def peak() -> int:
        for _ in range(100):
            products_of_lanes(torch.ones(1, 4, 1 << 20), torch.ones(1, 1 << 20, 1))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert peak() + 100_000 > peak()  # kilobytes; all of them together take twenty times as much


@pytest.mark.parametrize("model", ["mlp", "lstm", "char_mlp", "logistic_regression", "cnn"])
def test_engines_agree_with_and_without_them(model: str) -> None:
    local = LocalTraining(epochs=2, batch_size=4, lr=0.05, momentum=0.9)
    found = []
    for kind, options in (
        (CohortEngine, {"kernels": "compiled"}),
        (CohortEngine, {"kernels": "library"}),
        (ReferenceEngine, {}),
    ):
        engine = make_engine(kind, model, FedAvg(), local, dtype="float32", **options)
        found.append(train(engine, [3, 5, 7], {"params": engine.initial_params()}, {}))
    assert_same(found[0], found[1], tolerance=3e-5)
    assert_same(found[0], found[2], tolerance=3e-5)


def runs(folder: Path, **settings) -> dict:
    start_run(config(rounds=6, **settings), folder)
    return content(folder / "small")


def test_bits_are_the_same_twice_whoever_works_and_after_a_pause(tmp_path: Path) -> None:
    engine = {"name": "cohort", "kernels": "compiled"}
    settings = {"model": "mlp", "federation.partition.clients": 60, "cohort": 40}
    whole = runs(tmp_path / "one", engine=engine | {"workers": 1}, **settings)
    assert load_run(tmp_path / "one" / "small").config["engine"]["kernels"] == "compiled"
    for workers in (2, 3):
        again = runs(tmp_path / str(workers), engine=engine | {"workers": workers}, **settings)
        assert again["tensors"] == whole["tensors"]
        assert again["rounds.parquet"] == whole["rounds.parquet"]
    start_run(config(rounds=3, engine=engine | {"workers": 1}, **settings), tmp_path / "pause")
    resume_run(tmp_path / "pause" / "small", rounds=6)
    assert content(tmp_path / "pause" / "small")["tensors"] == whole["tensors"]


@pytest.mark.parametrize(
    "settings", [{"dtype": "float64"}, {"precision": "bf16"}], ids=["double precision", "rounded inputs"]
)
def test_they_are_for_single_precision(settings: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"for CPUs with engine.dtype float32"):
        start_run(config(engine={"name": "cohort", "kernels": "compiled", **settings}), tmp_path)
    start_run(config(rounds=1, engine={"name": "cohort", **settings}), tmp_path)
    assert load_run(tmp_path / "small").config["engine"]["kernels"] is None


def test_without_a_compiler_a_library_s_are_used_and_people_are_told(tmp_path: Path, monkeypatch) -> None:
    reason = "there is no C compiler (cc, gcc, clang or $CC)"
    monkeypatch.setattr(suitable, "why_absent", lambda: reason)
    monkeypatch.setattr(suitable, "are_faster_here", lambda: True)
    monkeypatch.setattr("fedarena.train.cohort.why_absent", lambda: reason)
    engine = make_engine(CohortEngine, "mlp", FedAvg(), LocalTraining(epochs=1, batch_size=4), dtype="float32")
    assert engine.kernels == "library"
    assert "kernels" not in engine.choices
    assert any("C compiler" in note for note in engine.notes)
    others = {"lanes": 4}, {"kernels": "library"}  # which would not use them anyway
    for options in others:
        local = LocalTraining(epochs=1, batch_size=4)
        engine = make_engine(CohortEngine, "mlp", FedAvg(), local, dtype="float32", **options)
        assert not any("C compiler" in note for note in engine.notes)
    with pytest.raises(BadInputError, match="not possible on this machine: there is no C compiler"):
        start_run(config(engine={"name": "cohort", "kernels": "compiled"}), tmp_path)


def test_programs_call_them() -> None:
    local = LocalTraining(epochs=1, batch_size=10)
    spec = DataSpec("classification", 62, (784,))
    asked = {}
    for kernels in ("compiled", "library"):
        task = make_task(build_model("mlp", spec, {"hidden": (200,)}, seed=0), spec)
        data = ClientsInMemory(spec)
        engine = CohortEngine(task, FedAvg(), local, data, seed=3, kernels=kernels, dense="written", workers=1)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            train(engine, [3], {"params": engine.initial_params()}, {})
        asked[kernels] = {event.name for event in profile.events() if event.name.startswith("fedarena_cpu::")}
    assert asked == {"compiled": {"fedarena_cpu::products", "fedarena_cpu::subtract_products"}, "library": set()}


class Freely(FedAvg):
    """Has a training loop of its own, in which nobody needs such kernels."""

    def train(self, client, model, data):
        """Learns nothing."""


def test_they_are_not_recorded_where_clients_train_one_at_a_time() -> None:
    engines = [
        make_engine(CohortEngine, "mlp", algorithm, LocalTraining(epochs=1, batch_size=4), dtype="float32", **options)
        for algorithm in (FedAvg(), Freely())
        for options in ({"kernels": "compiled"},)
    ]
    assert [engine.choices.get("kernels") for engine in engines] == ["compiled", None]


def test_runs_from_before_there_was_a_choice_go_on_with_libraries() -> None:
    local = LocalTraining(epochs=1, batch_size=4)
    engine = make_engine(
        CohortEngine, "mlp", FedAvg(), local, dtype="float32", lanes=4
    )  # which such runs have recorded
    assert engine.kernels == "library"


def told(folder: Path, **variables: str) -> str:
    """What a process of its own says of these kernels."""
    script = "from fedarena.train.native import why_absent; print(why_absent())"
    environment = {**os.environ, "FEDARENA_CACHE": str(folder), **variables}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_what_the_compiler_made_is_kept_and_made_again_if_it_is_damaged(tmp_path: Path) -> None:
    assert told(tmp_path) == "None"
    (kept,) = (tmp_path / "kernels").iterdir()
    made = kept.read_bytes()
    before = kept.stat().st_mtime_ns
    assert told(tmp_path) == "None"
    assert kept.stat().st_mtime_ns == before
    kept.write_bytes(made[:1000])
    assert told(tmp_path) == "None"
    assert len(kept.read_bytes()) == len(made)
    assert [path.name for path in (tmp_path / "kernels").iterdir()] == [kept.name]


def test_where_nothing_can_be_kept_they_are_made_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("no folder")
    assert told(tmp_path) == "None"
    assert (tmp_path / "kernels").read_text() == "no folder"


def test_compilers_that_are_not_there_or_fail(tmp_path: Path) -> None:
    assert "there is no C compiler" in told(tmp_path, CC="no-such-compiler")
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho 'kernels.c:1: error: it does not like them' >&2\nexit 1\n")
    failing.chmod(0o755)
    said = told(tmp_path, CC=str(failing))
    assert "could not make them" in said
    assert "it does not like them" in said
    assert not list((tmp_path / "kernels").iterdir())


def test_kernels_that_compute_something_else_are_not_used(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.c"
    source = library._SOURCE.read_text()
    wrong.write_text(source.replace("0.1333089974557336f", "0.5f"))
    assert wrong.read_text() != source
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\nexec cc $(echo \"$@\" | sed 's#[^ ]*kernels.c#{wrong}#')\n")
    compiler.chmod(0o755)
    assert "from what they should compute" in told(tmp_path / "cache", CC=str(compiler))
