"""Compressors: laws of their errors, bytes of what they send, chains, both engines, resumed runs, bad input."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logistic_clients import LOCAL, logistic_simulation, make_clients, phones_of_different_speeds
from small_runs import StopAfter, config, content, interrupt

from fedarena.algorithms import FedAvg, Scaffold
from fedarena.core.errors import BadInputError
from fedarena.runs.run import resume_run, start_run
from fedarena.simulate import simulate
from fedarena.simulate.protocols import Buffered
from fedarena.train import CohortEngine, Job, JobArrays, ReferenceEngine, Work
from fedarena.transforms import (
    DOWNLOADS,
    QSGD,
    Clip,
    Compressor,
    Half,
    LowRank,
    RandomK,
    Rows,
    Sign,
    Sketched,
    Ternary,
    TopK,
    Transform,
    UpdatePath,
)
from fedarena.transforms.downlink import Downlink
from fedarena.transforms.rows import flat
from fedarena.transforms.wire import SENT

NUMBERS = itertools.count()
SHAPES = {"weight": (6, 7), "bias": (5,), "filters": (4, 3, 2, 2), "scale": ()}
LENGTH = sum(torch.Size(shape).numel() for shape in SHAPES.values())
COMPRESSORS = {
    "top_k": lambda: TopK(share=0.1),
    "top_k without feedback": lambda: TopK(k=7, error_feedback=False),
    "random_k": lambda: RandomK(share=0.2),
    "random_k with feedback": lambda: RandomK(k=9, error_feedback=True),
    "qsgd": lambda: QSGD(bits=3, bucket=16),
    "qsgd in one bucket": lambda: QSGD(bits=8),
    "sign": lambda: Sign(),
    "ternary": lambda: Ternary(),
    "half": lambda: Half(format="fp16"),
    "bf16 with feedback": lambda: Half(error_feedback=True),
    "low_rank": lambda: LowRank(rank=1),
    "count_sketch": lambda: Sketched(share=0.3),
    "count_sketch without feedback": lambda: Sketched(share=0.3, rows=3, error_feedback=False),
}
WITH_FEEDBACK = [name for name, make in COMPRESSORS.items() if make().error_feedback]
EACH = pytest.mark.parametrize("name", COMPRESSORS)


def rows_of(vectors: torch.Tensor, round: int = 1, version: int = 0, seed: int = 0) -> Rows:
    pieces = torch.split(vectors, [torch.Size(shape).numel() for shape in SHAPES.values()], dim=1)
    params = {
        name: piece.reshape(len(vectors), *shape) for piece, (name, shape) in zip(pieces, SHAPES.items(), strict=True)
    }
    jobs = JobArrays.of([Job(client, round, version=version) for client in range(len(vectors))])
    ones = np.ones(len(vectors))
    return Rows({"params": params}, jobs, Work(ones, ones, ones), ones, ("params",), seed, "transform:0:")


def form_of(rows: Rows):
    return {name: t[0] for name, t in rows.update["params"].items()}


def new_state(compressor: Compressor, rows: Rows):
    fresh = compressor.client_init({"params": form_of(rows)})
    return {
        group: {name: torch.stack([t] * len(rows)) for name, t in tensors.items()} for group, tensors in fresh.items()
    }


def compressed(compressor: Compressor, rows: Rows, kept=None):
    """What the server sees, what clients keep, and the bytes of each."""
    kept = new_state(compressor, rows) if kept is None else kept
    update, kept = compressor.at_client(rows, kept, {})
    sizes = update.pop(SENT)["params"]
    return flat(update), kept, sizes.numpy()


def random_rows(seed: int, rows: int = 3, dtype=torch.float64) -> torch.Tensor:
    """Numbers of different sizes, some of them zero."""
    generator = np.random.default_rng(seed)
    numbers = generator.normal(size=(rows, LENGTH)) * 10.0 ** generator.integers(-3, 2, size=(rows, LENGTH))
    return torch.from_numpy(numbers * (generator.random((rows, LENGTH)) < 0.9)).to(dtype)


# --- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(13)
@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_the_server_decodes_what_clients_meant_from_the_bytes_that_are_counted(name, dtype, seed) -> None:
    compressor, rows = COMPRESSORS[name](), rows_of(random_rows(seed, dtype=dtype))
    seen, _, sizes = compressed(compressor, rows)
    form = form_of(rows)
    messages, _ = compressor.compress(flat(rows.update), rows, new_state(compressor, rows))
    encoding = compressor.encoding(form)
    for row in range(len(rows)):
        data = encoding.encode({part: t[row] for part, t in messages.items()})
        assert len(data) == sizes[row]
        decoded = {part: t[None] for part, t in encoding.decode(data).items()}
        assert torch.equal(compressor.restore(decoded, form)[0], seen[row])


@EACH
def test_planned_bytes_are_about_the_real_ones(name) -> None:
    vectors = torch.randn(50, LENGTH, generator=torch.Generator().manual_seed(0))
    compressor, rows = COMPRESSORS[name](), rows_of(vectors)
    planned = UpdatePath(FedAvg(), [compressor]).planned_bytes({"params": form_of(rows)})
    _, _, sizes = compressed(compressor, rows)
    assert planned == pytest.approx(sizes.mean(), rel=0.1)


def real_bytes(transforms: list[Transform], rows: Rows) -> np.ndarray:
    shard = type("NoShard", (), {"states": {}})()
    after, _, sent = UpdatePath(FedAvg(), transforms)._transform(rows, shard, [{}] * len(transforms), {})
    assert SENT not in after.update
    return sent


def test_what_undoes_an_encoding_pays_for_it() -> None:
    rows = rows_of(random_rows(1, rows=4, dtype=torch.float32))
    dense = 4 * LENGTH
    quantized = real_bytes([QSGD(bits=2)], rows)
    assert (quantized < 0.2 * dense).all()
    clipped = real_bytes([QSGD(bits=2), Clip(bound=1e-3)], rows)  # levels are no levels any more, but zeros are zeros
    values = [int((row != 0).sum()) for row in compressed(QSGD(bits=2), rows)[0]]
    assert (clipped >= 4 * np.array(values)).all()
    assert (clipped <= dense).all()
    assert (real_bytes([Clip(bound=1e-3), QSGD(bits=2)], rows) < 0.2 * dense).all()
    assert (real_bytes([LowRank(rank=1), Clip()], rows) == dense).all()
    assert (real_bytes([LowRank(rank=1), Half()], rows) == 2 * LENGTH).all()
    # Clipping leaves places as they are: what is sparse is sent like that.
    np.testing.assert_array_equal(real_bytes([TopK(share=0.1), Clip()], rows), real_bytes([TopK(share=0.1)], rows))


def test_compressors_make_use_of_each_other() -> None:
    rows = rows_of(random_rows(2, rows=4, dtype=torch.float32))
    alone = real_bytes([TopK(share=0.3)], rows)
    for second in (QSGD(bits=4), Half(), Sign(), Ternary()):
        assert (real_bytes([TopK(share=0.3), second], rows) < alone).all()
        planned = UpdatePath(FedAvg(), [TopK(share=0.3), second]).planned_bytes({"params": form_of(rows)})
        assert planned == pytest.approx(real_bytes([TopK(share=0.3), second], rows).mean(), rel=0.3)


class AddsOne(Transform):
    """Of somebody's own, who does not speak of bytes."""

    def at_client(self, rows, kept, server):
        return {"params": {name: t + 1 for name, t in rows.update["params"].items()}}, kept


def test_a_transform_that_does_not_speak_of_bytes_is_taken_to_change_everything() -> None:
    rows = rows_of(random_rows(3, dtype=torch.float32))
    assert (real_bytes([Sign(), AddsOne()], rows) == 4 * LENGTH).all()
    assert UpdatePath(FedAvg(), [Sign(), AddsOne()]).planned_bytes({"params": form_of(rows)}) == 4 * LENGTH


# --- laws ------------------------------------------------------------------------------------------------------------

DRAWS = 4000


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("compressor", "variance"),
    [
        # the claimed bound of E|sent - v|², in terms of v
        (RandomK(k=30), lambda v: (LENGTH / 30 - 1) * (v**2).sum()),
        (QSGD(bits=3, bucket=LENGTH), lambda v: min(LENGTH / 9, LENGTH**0.5 / 3) * (v**2).sum()),
        (QSGD(bits=2, bucket=10), lambda v: 10**0.5 * (v**2).sum()),
        (Ternary(), lambda v: sum((p.abs() * (p.abs().max() - p.abs())).sum() for p in pieces_of(v))),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Compressor) else "",
)
def test_unbiased_compressors_are_right_in_the_mean_and_as_noisy_as_they_say(compressor, variance) -> None:
    vector = random_rows(4, rows=1).sign() * torch.linspace(0.1, 2, LENGTH, dtype=torch.float64)
    seen, _, _ = compressed(compressor, rows_of(vector.expand(DRAWS, -1)))
    errors = seen - vector
    # The mean of so many independent draws is normal: of 96 coordinates hardly one is 5 deviations off by chance.
    assert (errors.mean(0).abs() <= 5 * errors.std(0) / DRAWS**0.5 + 1e-12).all()
    assert (errors.std(0) > 1e-3).float().mean() > 0.8
    bound, squares = float(variance(vector[0])), (errors**2).sum(1)
    assert squares.mean() <= bound + 5 * squares.std() / DRAWS**0.5
    if not isinstance(compressor, QSGD):  # the law says what it is
        assert squares.mean() == pytest.approx(bound, abs=float(5 * squares.std() / DRAWS**0.5))


def pieces_of(vector: torch.Tensor):
    return torch.split(vector, [torch.Size(shape).numel() for shape in SHAPES.values()])


def test_a_count_sketch_is_unbiased_over_versions() -> None:
    vector, compressor = random_rows(5, rows=1).clamp(-2, 2), Sketched(share=0.3, rows=2, error_feedback=False)
    seen = torch.cat([compressed(compressor, rows_of(vector, version=version))[0] for version in range(1500)])
    errors = seen - vector
    assert (errors.mean(0).abs() <= 5 * errors.std(0) / 1500**0.5).all()
    # Cells hold 1 / share coordinates or so, and the mean over rows is over independent ones.
    assert (errors**2).sum(1).mean() <= 1.1 / 0.3 * (vector**2).sum()


def test_tables_of_a_count_sketch_can_be_added_up() -> None:
    rows, compressor = rows_of(random_rows(6, rows=4)), Sketched(share=0.3, rows=2)
    messages, _ = compressor.compress(flat(rows.update), rows, {})
    total = {"key": messages["key"][:1], "table": messages["table"].sum(0, keepdim=True)}
    together = compressor.restore(total, form_of(rows))
    torch.testing.assert_close(together[0], compressor.restore(messages, form_of(rows)).sum(0))


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), version=st.integers(0, 50))
def test_contractions_leave_less_error_than_they_were_given(seed, version) -> None:
    vectors = random_rows(seed)
    rows, squares = rows_of(vectors, version=version), (vectors**2).sum(1)

    def left(compressor: Compressor) -> torch.Tensor:
        return ((compressed(compressor, rows)[0] - vectors) ** 2).sum(1) - 1e-9 * squares

    assert (left(TopK(k=12)) <= (1 - 12 / LENGTH) * squares).all()
    for piece, seen in zip(pieces_of(vectors[0]), pieces_of(compressed(Sign(), rows)[0][0]), strict=True):
        number = max(1, int((piece != 0).sum()))
        bound = (piece**2).sum() - piece.abs().sum() ** 2 / number
        assert ((piece - seen) ** 2).sum() <= bound + 1e-9
    assert (left(LowRank(rank=1)) <= squares).all()
    assert (left(Sketched(share=0.3, rows=2)) <= squares).all()
    for compressor, bits in ((Half(format="fp16"), 11), (Half(format="bf16"), 8)):
        seen, large = compressed(compressor, rows)[0], vectors.abs() > 1e-3
        assert ((seen - vectors).abs()[large] <= 2.0**-bits * vectors.abs()[large]).all()


@pytest.mark.parametrize(
    ("compressor", "delta"), [(RandomK(k=24, error_feedback=True), 24 / LENGTH), (Sketched(share=0.25), 0.25)]
)
def test_random_contractions_hold_in_the_mean(compressor, delta) -> None:
    vector = random_rows(7, rows=1).clamp(-2, 2)
    seen = torch.cat([compressed(compressor, rows_of(vector, round=n, version=n))[0] for n in range(800)])
    left = ((seen - vector) ** 2).sum(1) / (vector**2).sum()
    assert left.mean() == pytest.approx(1 - delta, abs=float(5 * left.std() / 800**0.5))


def test_low_rank_finds_what_is_of_low_rank() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(3, n, 2, generator=generator, dtype=torch.float64) for n in (20, 30))
    exact = left @ right.mT
    rows = replace(rows_of(random_rows(0)), update={"params": {"w": exact}})
    seen, _, _ = compressed(LowRank(rank=2), rows)
    torch.testing.assert_close(seen, exact.flatten(1))
    # From job to job the kept start gets better: the error approaches that of the best matrix of that rank.
    noisy = exact + 0.3 * torch.randn(3, 20, 30, generator=generator)
    rows, kept, errors = replace(rows, update={"params": {"w": noisy}}), None, []
    compressor = LowRank(rank=2, error_feedback=False)
    for _ in range(15):
        seen, kept, _ = compressed(compressor, rows, kept)
        errors.append(((seen - noisy.flatten(1)) ** 2).sum(1))
    best = (torch.linalg.svdvals(noisy)[:, 2:] ** 2).sum(1)
    assert (errors[0] > 1.02 * best).all()
    torch.testing.assert_close(errors[-1], best, rtol=1e-3, atol=0)


def test_low_rank_starts_again_after_nothing() -> None:
    compressor, rows = LowRank(rank=1), rows_of(torch.zeros(2, LENGTH, dtype=torch.float64))
    seen, kept, _ = compressed(compressor, rows)
    assert not seen.any()
    seen, _, _ = compressed(compressor, rows_of(random_rows(8, rows=2)), kept)
    assert seen.isfinite().all()
    assert all(part.any() for part in pieces_of(seen[0])[:2])


@pytest.mark.parametrize("name", WITH_FEEDBACK)
def test_with_error_feedback_nothing_is_lost(name) -> None:
    compressor, kept = COMPRESSORS[name](), None
    meant = sent = torch.zeros(3, LENGTH, dtype=torch.float64)
    for round in range(1, 8):
        update = random_rows(round)
        seen, kept, _ = compressed(compressor, rows_of(update, round=round, version=round), kept)
        meant, sent = meant + update, sent + seen
    torch.testing.assert_close(sent + flat({"error": kept["error"]}), meant, rtol=1e-9, atol=1e-9)
    assert flat({"error": kept["error"]}).abs().max() > 0


@EACH
def test_nothing_infinite_is_hidden(name) -> None:
    vectors = random_rows(9, rows=2)
    vectors[0] = torch.inf
    seen, _, _ = compressed(COMPRESSORS[name](), rows_of(vectors))
    assert not seen[0].isfinite().all()
    assert seen[1].isfinite().all()


@EACH
def test_zeros_stay_zeros(name) -> None:
    seen, _, _ = compressed(COMPRESSORS[name](), rows_of(torch.zeros(2, LENGTH)))
    assert not seen.any()


@EACH
def test_a_client_s_result_does_not_depend_on_the_others(name) -> None:
    compressor, rows = COMPRESSORS[name](), rows_of(random_rows(10))
    alone = [compressed(compressor, rows.take(np.array([row])))[0][0] for row in range(3)]
    torch.testing.assert_close(compressed(compressor, rows)[0], torch.stack(alone))
    other = compressed(compressor, replace(rows, jobs=JobArrays.of([Job(c, 2, version=1) for c in range(3)])))[0]
    if isinstance(compressor, RandomK | QSGD | Ternary | Sketched):
        assert not torch.equal(other, compressed(compressor, rows)[0])


# --- whole runs ------------------------------------------------------------------------------------------------------

CHAINS = {
    "top_k, qsgd": [TopK(share=0.5), QSGD(bits=8)],
    "clip, random_k": [Clip(bound=0.4), RandomK(share=0.4, error_feedback=True)],
    "low_rank, half": [LowRank(rank=1), Half()],
    "ternary": [Ternary()],
    "sign, clip": [Sign(), Clip(bound=0.4)],
    "count_sketch": [Sketched(share=0.4)],
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("parts", [{}, {"protocol": Buffered(buffer_size=2)}], ids=["ideal", "buffered"])
def test_both_engines_agree(make_federation, chain, parts) -> None:
    if parts:
        parts = parts | {"fleet": phones_of_different_speeds()}
    algorithm = Scaffold if not parts else FedAvg
    states = []
    for kind in (CohortEngine, ReferenceEngine):
        federation = make_federation(make_clients(), 3, name=f"compressed {next(NUMBERS)}")
        simulation = logistic_simulation(federation, algorithm(), LOCAL, kind)
        *_, last = simulate(replace(simulation, transforms=tuple(CHAINS[chain]), **parts))
        states.append(last.snapshot)
    one, other = states
    for group, tensors in one.state.items():
        for name, t in tensors.items():
            torch.testing.assert_close(other.state[group][name], t, rtol=0, atol=1e-9)


ALL_NAMES = [{"name": "low_rank", "rank": 1}, "sign", {"name": "count_sketch", "share": 0.5}, {"name": "random_k"}]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("transforms", [ALL_NAMES, ["clip", {"name": "top_k", "k": 40}, "qsgd"], ["ternary", "half"]])
def test_an_interrupted_run_ends_the_same(tmp_path: Path, transforms) -> None:
    settings = {"transforms": transforms, "algorithm": "scaffold", "rounds": 8, "engine": "reference"}
    start_run(config(**settings), tmp_path / "uninterrupted")
    with pytest.raises(KeyboardInterrupt):
        start_run(config(**settings), tmp_path, StopAfter(5, interrupt))
    resume_run(tmp_path / "small")
    assert content(tmp_path / "small") == content(tmp_path / "uninterrupted" / "small")


# --- what does not fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transform", "sentence"),
    [
        ({"name": "top_k", "k": 1_000_000}, r"top_k.k is 1,000,000, but the model has only 650 parameters"),
        ({"name": "random_k", "k": 651}, r"random_k.k is 651, but the model has only 650 parameters"),
        ({"name": "top_k", "k": 0}, "top_k.k must be at least 1, not 0"),
        ({"name": "top_k", "k": 5, "share": 0.1}, "top_k.k and top_k.share are both given"),
        ({"name": "random_k", "k": 5, "share": 0.1}, "random_k.k and random_k.share are both given"),
        ({"name": "random_k", "share": 0}, "random_k.share must be above 0 and at most 1"),
        ({"name": "random_k", "share": 1.5}, "random_k.share must be above 0 and at most 1"),
        ({"name": "count_sketch", "share": -0.5}, "count_sketch.share must be above 0"),
        ({"name": "count_sketch", "rows": 651}, "count_sketch.rows is 651, but the model has only 650 parameters"),
        ({"name": "count_sketch", "rows": 0}, "count_sketch.rows must be at least 1"),
        ({"name": "qsgd", "bits": 1}, "qsgd.bits must be from 2 to 16, not 1"),
        ({"name": "qsgd", "bits": 17}, "qsgd.bits must be from 2 to 16, not 17"),
        ({"name": "qsgd", "bucket": 0}, "qsgd.bucket must be at least 1"),
        ({"name": "ternary", "clip_deviations": 0}, "ternary.clip_deviations must be above 0"),
        ({"name": "half", "format": "fp8"}, "format"),
        ({"name": "low_rank", "rank": 0}, "low_rank.rank must be at least 1"),
        ({"name": "low_rank", "rank": 9}, "low_rank.rank is 9, with which no matrix of this model gets smaller"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, transform, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        start_run(config(engine="reference", transforms=[transform]), tmp_path)
    assert not list(tmp_path.iterdir())


class AboveCommonMean(TopK):
    """Sends what is larger than the mean over all clients of the same rows, which depends on who these are."""

    def compress(self, vectors, rows, kept):
        return {"values": torch.where(vectors.abs() > vectors.abs().mean(), vectors, 0.0)}, {}


class DrawsByItself(TopK):
    """Draws random numbers that nobody can draw again."""

    def compress(self, vectors, rows, kept):
        return {"values": vectors * torch.rand_like(vectors)}, {}


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ({"transforms": f"{__name__}:AboveCommonMean"}, "AboveCommonMean.at_client gives a client another update"),
        ({"transforms": f"{__name__}:DrawsByItself"}, "DrawsByItself.at_client .*rows.context"),
        ({"download": f"{__name__}:DrawsByItself"}, "DrawsByItself.compress .*rows.context"),
    ],
)
def test_compressors_of_somebody_s_own_are_looked_at(tmp_path: Path, part, sentence) -> None:
    with pytest.raises(BadInputError, match=sentence):
        start_run(config(engine="reference", rounds=2, **part), tmp_path)


@pytest.mark.parametrize("algorithm", ["fetchsgd", "timelyfl", "fedkd"])
def test_methods_that_send_something_else_are_refused(tmp_path: Path, algorithm: str) -> None:
    with pytest.raises(BadInputError, match="QSGD does not fit"):
        start_run(config(engine="reference", transforms="qsgd", algorithm=algorithm), tmp_path)


# --- what the documentation says -------------------------------------------------------------------------------------


def test_the_table_of_the_documentation_has_the_bytes_that_encode_gives() -> None:
    page = (Path(__file__).parents[2] / "docs" / "compression.md").read_text(encoding="utf-8")
    found = {
        cells[0].strip(" `"): int(cells[-1].replace(",", ""))
        for line in page.splitlines()
        if line.startswith("| `") and len(cells := re.split(r"(?<!\\)\|", line.strip("|"))) == 5
    }
    assert found.keys() == set(DOWNLOADS.names()) - {"none"}
    matrix = torch.randn(1, 1000, 1000, generator=torch.Generator().manual_seed(0))
    one = np.ones(1)
    jobs = JobArrays.of([Job(0, 1)])
    rows = Rows({"params": {"w": matrix}}, jobs, Work(one, one, one), one, ("params",), 0, "transform:0:")
    for name, said in found.items():
        compressor = DOWNLOADS.get(name)()
        memory = new_state(compressor, rows)
        messages, _ = compressor.compress(matrix.flatten(1), rows, memory)
        data = compressor.encoding({"w": matrix[0]}).encode({part: t[0] for part, t in messages.items()})
        assert len(data) == pytest.approx(said, rel=0.002), name


# --- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")
@EACH
def test_a_gpu_sends_the_same(name) -> None:
    compressor, vectors = COMPRESSORS[name](), random_rows(11)
    seen, _, sizes = compressed(compressor, rows_of(vectors))
    twice = [compressed(compressor, rows_of(vectors.cuda())) for _ in range(2)]
    assert torch.equal(twice[0][0], twice[1][0])
    torch.testing.assert_close(twice[0][0].cpu(), seen)
    np.testing.assert_array_equal(twice[0][2], sizes)
    assert all(t.is_cuda for tensors in twice[0][1].values() for t in tensors.values())
    downlink = Downlink(FedAvg(), compressor)
    params = {"w": vectors[0].reshape(12, 8).cuda()}
    after = downlink.advance({"params": {"w": params["w"] + 1}}, downlink.start({"params": params}), 1)
    assert after["held"]["w"].is_cuda
