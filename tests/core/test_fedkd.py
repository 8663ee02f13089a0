"""FedKD against a plain loop: two models per client with gradients by hand, and NumPy's own decomposition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from logistic_clients import (
    CLASSES,
    COHORT,
    ENGINES,
    FEATURES,
    LOCAL,
    ROUNDS,
    SIZES,
    by_samples,
    cohorts,
    flat,
    losses_and_gradient,
    make_clients,
    run_simulation,
)
from test_cohort import assert_same, make_engine, train
from torch.func import vmap

from fedarena.algorithms import FedAvg, FedKD
from fedarena.algorithms.low_rank import compress
from fedarena.core.errors import BadInputError, DivergedError
from fedarena.models import DataSpec, build_model, make_task
from fedarena.runs.building import prepare
from fedarena.runs.config import resolve
from fedarena.runs.observer import Observer
from fedarena.train import CohortEngine, LocalTraining, ReferenceEngine, count_training_flops
from fedarena.train.batches import batch_indices

WEIGHTS = CLASSES * FEATURES


def shortened(matrix: np.ndarray, energy: float) -> tuple[np.ndarray, int]:
    """A matrix after compression, and how many numbers it is sent as."""
    left, values, right = np.linalg.svd(matrix.reshape(len(matrix), -1), full_matrices=False)
    rank = 0
    while rank < len(values) and not (values[:rank] ** 2).sum() > energy * (values**2).sum():
        rank += 1
    numbers = rank * (left.shape[0] + right.shape[1] + 1)
    if numbers >= matrix.size:
        return matrix, matrix.size
    return ((left[:, :rank] * values[:rank]) @ right[:rank]).reshape(matrix.shape), numbers


def predictions(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    logits = x @ w[:WEIGHTS].reshape(CLASSES, FEATURES).T + w[WEIGHTS:]
    p = np.exp(logits - logits.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def gradient(own: np.ndarray, other: np.ndarray, x: np.ndarray, y: np.ndarray, joint: bool) -> np.ndarray:
    """Of one model's loss, with the derivatives by its scores written out."""
    p, q, labels = predictions(own, x), predictions(other, x), np.eye(CLASSES)[y]
    errors = sum(losses_and_gradient(w, x, y)[0] for w in (own, other))
    by_score = (p - labels) + (p - q) / errors
    if joint:
        towards, away = (q * np.log(q / p)).sum(1), (p * np.log(p / q)).sum(1)
        by_score = by_score + p * (np.log(p / q) - away[:, None]) / errors
        by_score = by_score - (towards.mean() + away.mean()) / errors**2 * (p - labels)
    by_score = by_score / len(y)
    return np.concatenate([(by_score.T @ x).ravel(), by_score.sum(0)])


def together(mentee: np.ndarray, mentor: np.ndarray, client: int, round: int, joint: bool) -> tuple:
    """Both models after a client's local training."""
    x, y = list(make_clients().values())[client]
    for rows in batch_indices(len(x), LOCAL, 2, round, client):
        steps = (gradient(a, b, x[rows], y[rows], joint) for a, b in ((mentee, mentor), (mentor, mentee)))
        mentee, mentor = (w - LOCAL.lr * step for w, step in zip((mentee, mentor), steps, strict=True))
    return mentee, mentor


@pytest.mark.sampled(2)
@ENGINES
@pytest.mark.parametrize("gradients", ["own", "joint"])
def test_against_the_paper(make_federation, engine_kind, gradients: str) -> None:
    algorithm = FedKD(start_energy=0.5, end_energy=0.95, gradients=gradients, server_lr=0.9)
    first, last = run_simulation(make_federation, algorithm, LOCAL, engine_kind)
    start, end = (flat(outcome.snapshot.state["params"]) for outcome in (first, last))
    w, mentors, numbers, seen = start, {}, len(start), set()
    for round, cohort in cohorts():
        expected_bytes = int(np.rint(numbers * 8))
        energy, sent, sizes = 0.5 + 0.45 * round / ROUNDS, [], []
        for i in cohort:
            mentee, mentors[i] = together(w, mentors.get(i, w), i, round, gradients == "joint")
            change, size = shortened((mentee - w)[:WEIGHTS].reshape(CLASSES, FEATURES), energy)
            sent.append(np.concatenate([change.ravel(), (mentee - w)[WEIGHTS:]]))
            sizes.append(size + CLASSES)
        seen |= set(sizes)
        numbers = by_samples(cohort) @ np.array(sizes)
        w = w + 0.9 * by_samples(cohort) @ np.array(sent)
    np.testing.assert_allclose(end, w, rtol=0, atol=1e-10)
    assert seen == {CLASSES + FEATURES + 1 + CLASSES, WEIGHTS + CLASSES}  # some were compressed, some not
    assert last.row["bytes_up"] == COHORT * expected_bytes
    assert expected_bytes < 8 * len(start)
    assert last.row["bytes_down"] == COHORT * 8 * (len(start) + 1)  # and how much to keep
    for i, mentor in mentors.items():
        np.testing.assert_allclose(flat(last.snapshot.client_states.get(i)["mentor"]), mentor, rtol=0, atol=1e-10)
    everybody = list(make_clients().values())
    scores = [losses_and_gradient(mentors.get(i, w), *everybody[i])[0] for i in range(len(SIZES))]
    np.testing.assert_allclose(last.personal_scores.means("loss"), scores, rtol=0, atol=1e-10)
    assert np.abs(last.personal_scores.means("loss") - last.scores.means("loss")).max() > 0.01


def test_before_the_first_upload_the_whole_model_is_expected(make_federation) -> None:
    first, _ = run_simulation(make_federation, FedKD(), LOCAL, CohortEngine)
    assert FedKD().expected_upload_bytes(first.snapshot.state) == 8 * (WEIGHTS + CLASSES)


def test_mentors_that_equal_mentees_teach_nothing() -> None:
    """The first round of every client is that of FedAvg, and so is the loss that is reported: the mentee's."""
    local = LocalTraining(epochs=2, batch_size=8, lr=0.1)
    found = []
    for algorithm in (FedAvg(), FedKD(start_energy=1, end_energy=1)):
        algorithm.prepare(10, local)
        engine = make_engine(ReferenceEngine, "mlp", algorithm, local)
        broadcast = algorithm.broadcast(algorithm.server_init(engine.initial_params()))
        found.append(train(engine, [1, 5], broadcast, {}))
    for client, (update, _, loss, _) in found[0].items():
        other, memory, other_loss, _ = found[1][client]
        assert other_loss == pytest.approx(loss, abs=1e-12)
        for name, change in update["params"].items():
            torch.testing.assert_close(other["params"][name], change, rtol=0, atol=1e-12)
            torch.testing.assert_close(memory["mentor"][name] - broadcast["params"][name], change, rtol=0, atol=1e-12)


@pytest.mark.parametrize("model", ["cnn", "char_mlp"])
def test_convolutions_and_text_train_as_one_at_a_time(model: str) -> None:
    local = LocalTraining(epochs=1, batch_size=8, lr=0.1)
    clients, outcomes = [1, 2, 3, 4, 6, 8], []
    for kind, options in ((ReferenceEngine, {}), (CohortEngine, {"lanes": 3})):
        algorithm = FedKD(start_energy=0.6, end_energy=0.6)
        algorithm.prepare(10, local)
        engine = make_engine(kind, model, algorithm, local, **options)
        assert getattr(engine, "notes", []) == []
        broadcast = algorithm.broadcast(algorithm.server_init(engine.initial_params()))
        memories = {client: memory for client, (_, memory, *_) in train(engine, clients, broadcast, {}).items()}
        outcomes.append(train(engine, clients, broadcast, memories, round=2))
    assert_same(*outcomes)
    numbers = {float(update["upload"]["numbers"]) for update, *_ in outcomes[0].values()}
    dense = sum(p.numel() for p in broadcast["params"].values())
    assert min(numbers) < 0.7 * dense
    assert max(numbers) <= dense


def test_padding_and_samples_that_do_not_count_teach_nothing() -> None:
    spec = DataSpec("next_token", 12, (9,), padding=0, unknown=1)
    options = {"context": 3, "embedding": 4, "hidden": 6}
    task = make_task(build_model("char_mlp", spec, options, seed=0).double(), spec)
    algorithm = FedKD(gradients="joint")
    models = [
        {name: p.double() for name, p in build_model("char_mlp", spec, options, seed).named_parameters()}
        for seed in (1, 2)
    ]
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 12, (3, 10), generator=generator)
    tokens[1, 6:] = 0
    params = {f"{kind}/{n}": p for kind, m in zip(("mentee", "mentor"), models, strict=True) for n, p in m.items()}

    def gradients_of(loss_of) -> list[torch.Tensor]:
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        return torch.autograd.grad(loss_of(leaves), list(leaves.values()))

    def by_hand(leaves) -> torch.Tensor:
        """Over the first two sequences, token by token."""
        each: dict[str, list[torch.Tensor]] = {"mentee": [], "mentor": []}
        targets = []
        for sequence in tokens[:2]:
            length = int((sequence[1:] != 0).sum())
            for name, rows in each.items():
                own = {n.removeprefix(f"{name}/"): p for n, p in leaves.items() if n.startswith(name)}
                logits = torch.func.functional_call(task.module, own, (sequence[None, :-1],))
                rows.append(logits[0, :length].log_softmax(-1))
            targets.append(sequence[1 : length + 1])
        s, t, target = torch.cat(each["mentee"]), torch.cat(each["mentor"]), torch.cat(targets)
        losses = torch.nn.functional.nll_loss(s, target) + torch.nn.functional.nll_loss(t, target)
        apart = [torch.nn.functional.kl_div(a, b, reduction="batchmean", log_target=True) for a, b in ((s, t), (t, s))]
        return losses + sum(apart) / losses

    batch = {**task.batch({"tokens": tokens}), "mask": torch.tensor([1.0, 1.0, 0.0])}
    found = gradients_of(lambda leaves: algorithm.local_loss(task, leaves, batch, None))
    for one, other in zip(found, gradients_of(by_hand), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert max(float(g.abs().max()) for g in found) > 1e-3


def test_a_client_that_diverges_is_named(make_federation) -> None:
    too_fast = LocalTraining(epochs=2, batch_size=5, lr=1e308)
    with pytest.raises(DivergedError, match=r"in round 1 at client 'c\d'"):
        run_simulation(make_federation, FedKD(), too_fast, CohortEngine)


shapes = st.sampled_from([(4, 9), (9, 4), (6, 6), (1, 8), (5, 1), (3, 2, 3, 3), (12, 4, 2)])


@settings(deadline=None, max_examples=60)
@example(shape=(6, 6), seed=0, decay=0.5, energy=0.0)
@example(shape=(9, 4), seed=1, decay=0.3, energy=1.0)
@given(shape=shapes, seed=st.integers(0, 10**6), decay=st.floats(0.1, 1.0), energy=st.floats(0.0, 1.0))
def test_the_smallest_rank_that_has_the_energy(shape, seed, decay, energy) -> None:
    generator = np.random.default_rng(seed)
    matrix = generator.normal(size=(shape[0], int(np.prod(shape[1:]))))
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = np.sort(values * decay ** np.arange(len(values)))[::-1]
    tensor = torch.from_numpy(((left * values) @ right).reshape(shape))
    sent, numbers = compress(tensor, torch.tensor(energy, dtype=torch.float64))
    expected, size = shortened(tensor.numpy(), energy)
    assert numbers == size
    assert numbers <= tensor.numel()
    np.testing.assert_allclose(sent.numpy(), expected, rtol=0, atol=1e-9)
    assert (sent**2).sum() > energy * (tensor**2).sum() * (1 - 1e-12)
    if numbers == tensor.numel():
        assert torch.equal(sent, tensor)


def test_many_matrices_at_once_have_ranks_of_their_own() -> None:
    generator = torch.Generator().manual_seed(0)
    ranks = [0, 1, 2, 3, 20]
    matrices = torch.stack(
        [
            torch.randn(20, rank, generator=generator, dtype=torch.float64)
            @ torch.randn(rank, 30, generator=generator, dtype=torch.float64)
            for rank in ranks
        ]
    )
    energy = torch.full((5,), 0.9999, dtype=torch.float64)
    sent, numbers = vmap(compress)(matrices, energy)
    assert numbers.tolist() == [rank * 51 for rank in ranks[:4]] + [600]
    torch.testing.assert_close(sent, matrices, rtol=0, atol=1e-9)
    assert torch.equal(sent[4], matrices[4])


def test_vectors_are_sent_as_they_are() -> None:
    vector = torch.randn(7)
    sent, numbers = compress(vector, torch.tensor(0.5))
    assert sent is vector
    assert numbers == 7


def test_what_is_not_finite_stays_so() -> None:
    matrix = torch.ones(2, 6, 6)
    matrix[1, 2, 3] = torch.nan
    sent, numbers = vmap(compress, in_dims=(0, None))(matrix, torch.tensor(0.9))
    assert numbers.tolist() == [13, 36]
    assert torch.isnan(sent[1, 2, 3])
    torch.testing.assert_close(sent[0], matrix[0])


def test_operations_of_both_models_count() -> None:
    spec = DataSpec("classification", CLASSES, (FEATURES,))
    task = make_task(build_model("logistic_regression", spec, {}, 0), spec)
    algorithm = FedKD()
    algorithm.prepare(len(SIZES), LOCAL)
    assert count_training_flops(task, algorithm) == 2 * count_training_flops(task)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start_energy": -0.1}, r"algorithm\.start_energy must be from 0 to 1, not -0\.1"),
        ({"end_energy": 1.1}, r"algorithm\.end_energy must be from 0 to 1, not 1\.1"),
        ({"gradients": "both"}, r"algorithm\.gradients must be own or joint, not 'both'"),
        ({"server_lr": 0.0}, r"algorithm\.server_lr must be above 0"),
    ],
)
def test_bad_options_get_a_sentence(options, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        FedKD(**options)


@pytest.mark.parametrize("federation", ["shapes_tags", "diabetes"])
def test_it_is_for_classes(federation: str) -> None:
    with pytest.raises(BadInputError, match="fedkd is for tasks that predict classes or tokens, and this one predicts"):
        prepare(resolve({"federation": federation, "algorithm": "fedkd", "cohort": 2}), Observer())
