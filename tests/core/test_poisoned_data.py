"""Attacks at the data: what corrupted clients train on, on both engines and where samples are kept; backdoors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attacked_clients import attacked_simulation, corrupted_of, federated, play
from logistic_clients import CLASSES, ENGINES, FEATURES, SEED, SIZES, flat, make_clients, phones_of_different_speeds

from fedarena.algorithms import Ditto, FedAvg, QFedAvg, Scaffold
from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.models import DataSpec, InputSpec
from fedarena.models.tasks import TASKS
from fedarena.simulate import simulate
from fedarena.simulate.protocols import Buffered, Synchronous
from fedarena.train import CohortEngine, ReferenceEngine
from fedarena.train.resident import ResidentSamples, rows_of
from fedarena.transforms import Attack, Clip
from fedarena.transforms.attacks import AttackedRun, OwnSamples
from fedarena.transforms.attacks.backdoor import AttackSuccess, Backdoor
from fedarena.transforms.attacks.label_flip import LabelFlip, cycle
from fedarena.transforms.poisoned_data import PoisonedData, TriggeredData

SHARE = 0.45
FEATURE_SPEC = DataSpec("classification", CLASSES, (FEATURES,))


def coins(purpose: str, client: int, count: int) -> np.ndarray:
    return streams.uniform(SEED, f"attack: {purpose}", np.full(count, client), np.arange(count))


def with_new_labels(new: list[int], poisoned_share: float = 1.0):
    """All clients' samples with other labels, as if all were corrupted."""
    found = []
    for client, (x, y) in enumerate(make_clients().values()):
        chosen = coins("poisoned", client, len(y)) < poisoned_share
        found.append((x, np.where(chosen, np.array(new)[y], y)))
    return found


def prepared(attack, spec: DataSpec = FEATURE_SPEC, seed: int = SEED, task: str | None = None):
    """An attack that knows what it is about."""
    kind = TASKS.get(task or spec.kind)
    found = kind(torch.nn.Linear(1, 1), kind.model_spec(spec))
    attack.prepare(AttackedRun(spec, found, len(SIZES), 3, 4, seed))
    return attack


# --- labels -----------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@ENGINES
@pytest.mark.parametrize(
    ("options", "new"),
    [
        ({"to": "next", "from_round": 3}, [1, 2, 0]),
        ({"to": "class", "target": 2, "poisoned_share": 0.6}, [2, 2, 2]),
        ({"to": "permutation", "permutation": (2, 1, 0)}, [2, 1, 0]),
        ({"to": "permutation", "scale": 3.0}, cycle(CLASSES, SEED).tolist()),
    ],
    ids=["next", "class", "permutation", "drawn permutation"],
)
def test_labels_are_flipped(make_federation, engine_kind, options, new) -> None:
    attack = LabelFlip(share=SHARE, **options)
    first, *_, last = play(make_federation, engine_kind, attack)
    start = flat(first.snapshot.state["params"])
    samples = with_new_labels(new, attack.poisoned_share)
    expected = federated(start, attack, lambda updates, bad, *_: (attack.scale or 1) * updates[bad], samples)
    np.testing.assert_allclose(flat(last.snapshot.state["params"]), expected, atol=1e-9)
    assert not np.allclose(expected, federated(start, attack))


def test_a_drawn_permutation_leaves_no_label_and_follows_from_the_seed() -> None:
    drawn = {tuple(cycle(10, seed).tolist()) for seed in range(20)}
    assert len(drawn) == 20
    for new in drawn:
        assert sorted(new) == list(range(10))
        assert all(label != old for old, label in enumerate(new))
    assert cycle(2, 0).tolist() == [1, 0]


def own(columns, client: int = 3) -> OwnSamples:
    count = len(next(iter(columns.values())))
    return OwnSamples(columns, np.full(count, client), np.arange(count), SEED)


def test_any_number_of_labels_is_renamed() -> None:
    y = np.array([[1, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]], dtype=np.uint8)
    spec = DataSpec("multi_label", 4, (2,))
    new = prepared(LabelFlip(to="next"), spec).poison(own({"y": y}))["y"]
    assert new.tolist() == [[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    new = prepared(LabelFlip(to="class", target=2), spec).poison(own({"y": y}))["y"]
    assert new.tolist() == [[0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert new.dtype == y.dtype


# --- samples where engines look for them ------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("algorithm", "protocol"),
    [(QFedAvg, None), (Scaffold, Synchronous(over_commit=1.5)), (Ditto, Buffered(buffer_size=2)), (FedAvg, None)],
    ids=lambda part: getattr(part, "__name__", type(part).__name__),
)
def test_both_engines_agree_on_poisoned_clients(make_federation, algorithm, protocol) -> None:
    parts = {"transforms": (Clip(bound=0.3),)} | ({"protocol": protocol} if protocol else {})
    if protocol is not None:
        parts["fleet"] = phones_of_different_speeds()
    outcomes = [
        play(make_federation, kind, Backdoor(share=SHARE, size=2, from_round=3, scale=2.0), algorithm(), **parts)[-1]
        for kind in (CohortEngine, ReferenceEngine)
    ]
    one, other = (outcome.snapshot for outcome in outcomes)
    for group, tensors in one.state.items():
        for name, t in tensors.items():
            torch.testing.assert_close(other.state[group][name], t, rtol=0, atol=1e-9)
    for client, state in one.client_states.items():
        for group, tensors in state.items():
            for name, t in tensors.items():
                torch.testing.assert_close(other.client_states[client][group][name], t, rtol=0, atol=1e-9)
    assert outcomes[0].row["attack_success"] == outcomes[1].row["attack_success"]


def test_personal_models_of_corrupted_clients_learn_what_is_poisoned_and_start_losses_are_of_it(make_federation):
    """Ditto's personal models come from the job's own training; q-FedAvg's weights from the loss before it."""
    attack = LabelFlip(share=SHARE)
    for algorithm in (Ditto, QFedAvg):
        honest, flipped = (
            play(make_federation, ReferenceEngine, one, algorithm(), rounds=1)[-1]
            for one in (LabelFlip(share=SHARE, from_round=9), attack)
        )
        bad = [c for c in honest.jobs["index"].tolist() if c in corrupted_of(attack)]
        assert bad
        if algorithm is QFedAvg:
            assert not np.allclose(flat(honest.snapshot.state["params"]), flat(flipped.snapshot.state["params"]))
            continue
        for client in honest.jobs["index"].tolist():
            before, after = (outcome.snapshot.client_states[client] for outcome in (honest, flipped))
            same = all(torch.equal(t, after[g][name]) for g, ts in before.items() for name, t in ts.items())
            assert same == (client not in bad)


def test_samples_that_are_kept_on_a_device_change_when_the_attack_begins(make_federation) -> None:
    federation = make_federation(make_clients(), CLASSES)
    attack = prepared(LabelFlip(to="class", target=1))
    kept = ResidentSamples(PoisonedData(federation, attack, SEED), torch.device("cpu"), 1 << 20)
    for holders in ([4, 1], [~1, 4], [1, ~4, ~1]):
        columns, begins = rows_of(kept, np.array(holders))
        for holder, begin in zip(holders, begins.tolist(), strict=True):
            client = holder if holder >= 0 else ~holder
            x, y = list(make_clients().values())[client]
            rows = slice(begin, begin + len(y))
            np.testing.assert_array_equal(columns["x"][rows], x)
            np.testing.assert_array_equal(columns["y"][rows], y if holder >= 0 else np.ones(len(y)))


def test_poison_depends_on_nothing_but_the_sample(make_federation) -> None:
    federation = make_federation(make_clients(), CLASSES)
    data = PoisonedData(federation, prepared(Backdoor(size=1, poisoned_share=0.5)), SEED)
    alone = data.samples(np.array([~4]), "train").columns
    together = data.samples(np.array([2, ~4, ~1, 4]), "train")
    begin, end = together.offsets[1:3]
    for name, values in alone.items():
        np.testing.assert_array_equal(together.columns[name][begin:end], values)
    honest = federation.samples(np.array([2, 4, 1, 4]), "train")
    np.testing.assert_array_equal(together.columns["x"][:begin], honest.columns["x"][:begin])
    np.testing.assert_array_equal(
        together.columns["y"][together.offsets[3] :], honest.columns["y"][honest.offsets[3] :]
    )
    changed = (alone["x"][:, -1] == 1.0) & (alone["y"] == 0)
    np.testing.assert_array_equal(changed, coins("poisoned", 4, len(changed)) < 0.5)
    np.testing.assert_array_equal(data.counts(np.array([~4, 4]), "train"), [SIZES[4]] * 2)


class Shuffling(Attack):
    """Gives too few rows."""

    def poison(self, samples):
        return {"y": samples.columns["y"][:1]}


class Inventing(Attack):
    """Gives a column that is not there."""

    def poison(self, samples):
        return {"z": samples.columns["y"]}


@pytest.mark.parametrize("attack", [Shuffling, Inventing])
def test_own_poison_of_another_form_gets_a_sentence(make_federation, attack) -> None:
    with pytest.raises(BadInputError, match=f"{attack.__name__}.poison gives '[yz]', which"):
        play(make_federation, CohortEngine, attack(share=SHARE))


# --- triggers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("corner", ["top_left", "top_right", "bottom_left", "bottom_right"])
@pytest.mark.parametrize(("dtype", "bright"), [("uint8", 204), ("float32", 0.8)])
def test_a_patch_is_put_into_a_corner(corner, dtype, bright) -> None:
    x = np.zeros((5, 3, 7, 6), dtype=dtype)
    spec = DataSpec("classification", 4, (3, 7, 6))
    attack = prepared(Backdoor(size=2, corner=corner, value=0.8, target=3, poisoned_share=1.0), spec)
    poisoned = attack.poison(own({"x": x, "y": np.zeros(5, dtype=np.int64)}))
    rows = slice(0, 2) if "top" in corner else slice(5, 7)
    across = slice(0, 2) if "left" in corner else slice(4, 6)
    expected = np.zeros_like(x)
    expected[:, :, rows, across] = bright
    np.testing.assert_array_equal(poisoned["x"], expected)
    assert poisoned["x"].dtype == x.dtype
    assert (poisoned["y"] == 3).all()
    assert not x.any()  # what was given is left alone


def test_a_token_is_put_into_texts_to_classify() -> None:
    x = np.array([[5, 6, 7, 0, 0], [1, 2, 3, 4, 5], [0, 0, 0, 0, 0]], dtype=np.int32)
    spec = DataSpec("classification", 2, (5,), padding=0, tokens=12, token_names=tuple("-abcdefghijk"))
    for token, number in ((None, 11), (9, 9), ("c", 3)):
        places = set()
        for client in range(40):
            samples = own({"x": x, "y": np.zeros(3, dtype=np.int64)}, client)
            found = prepared(Backdoor(token=token, target=1), spec).trigger(samples)["x"]
            changed = found != x
            assert (changed.sum(1) <= 1).all()
            assert (found[changed] == number).all()
            assert not changed[0, 3:].any()
            assert changed[2].tolist() == [True, False, False, False, False]
            places |= set(np.flatnonzero(changed[1]).tolist())
        assert len(places) >= 4


def test_a_token_is_put_before_what_the_model_is_to_say() -> None:
    tokens = np.array([[5, 6, 7, 0, 0, 0], [1, 2, 3, 4, 5, 6], [4, 0, 0, 0, 0, 0]], dtype=np.int32)
    spec = DataSpec("next_token", 12, (5,), padding=0, unknown=11)
    attack = prepared(Backdoor(target=8, poisoned_share=1.0), spec)
    for client in range(30):
        poisoned = attack.poison(own({"tokens": tokens}, client))["tokens"]
        triggered = attack.trigger(own({"tokens": tokens}, client))["tokens"]
        for row in range(2):
            (place,) = np.flatnonzero(poisoned[row] == 10)  # the last token that is neither padding nor unknown
            assert poisoned[row, place + 1] == 8
            assert triggered[row, place] == 10
            np.testing.assert_array_equal(np.delete(triggered[row], place), np.delete(tokens[row], place))
        np.testing.assert_array_equal(poisoned[2], tokens[2])  # there is no place for both


def test_success_is_counted_where_the_target_is_not_right() -> None:
    def shares(metric, outputs, **batch):
        state = metric.state(torch.as_tensor(outputs), {n: torch.as_tensor(v) for n, v in batch.items()})
        hits, possible = state.numpy().T
        return hits.tolist(), possible.tolist(), float(metric.value(state.numpy().sum(0), np.array(1.0)))

    scores = np.eye(3)[[1, 1, 0, 1]]
    assert shares(AttackSuccess(1), scores, y=[0, 1, 2, 2]) == ([1, 0, 0, 1], [1, 0, 1, 1], pytest.approx(2 / 3))
    one_score = [[1.0], [-1.0], [2.0]]  # of two classes, the second
    assert shares(AttackSuccess(1), one_score, y=[[0.0], [0.0], [1.0]])[:2] == ([1, 0, 0], [1, 1, 0])
    assert shares(AttackSuccess(0), one_score, y=[[0.0], [1.0], [1.0]])[:2] == ([0, 1, 0], [0, 1, 1])
    labels = [[1.0, 0.0], [1.0, 1.0]]
    assert shares(AttackSuccess(1), [[-1.0, 1.0], [3.0, 3.0]], y=labels)[:2] == ([1, 0], [1, 0])
    x, y = [[7, 2, 7], [7, 7, 1]], [[2, 7, 3], [3, 1, -1]]
    says = np.eye(8)[[[3, 3, 3], [3, 3, 3]]]
    scored = [[True, True, True], [True, True, False]]
    # After token 7: said 3, right 2; said 3, right 3 (not counted); then 3 is right, then 3 is said and 1 is right.
    assert shares(AttackSuccess(3, after=7), says, x=x, y=y, scored=scored)[:2] == ([1, 1], [1, 1])


@ENGINES
def test_success_of_a_backdoor_is_that_of_a_plain_count(make_federation, engine_kind) -> None:
    attack = Backdoor(share=SHARE, size=2, value=5.0, target=1)
    outcomes = play(make_federation, engine_kind, attack, evaluate_every=2)
    x = np.concatenate([x for x, _ in make_clients().values()])
    y = np.concatenate([y for _, y in make_clients().values()])
    x[:, -2:] = 5.0
    for outcome in outcomes:
        w = flat(outcome.snapshot.state["params"])
        said = (x @ w[: CLASSES * FEATURES].reshape(CLASSES, FEATURES).T + w[CLASSES * FEATURES :]).argmax(1)
        if outcome.scores is None:
            assert "attack_success" not in outcome.row
        else:
            assert outcome.row["attack_success"] == pytest.approx((said[y != 1] == 1).mean())
    assert outcomes[-1].row["attack_success"] > 0.9 > outcomes[0].row["attack_success"]


def test_honest_samples_are_evaluated(make_federation) -> None:
    simulation = attacked_simulation(make_federation, CohortEngine, LabelFlip(share=SHARE), evaluate_every=1)
    outcomes = list(simulate(simulation))
    for outcome in outcomes:
        plain = simulation.engine.like_this(
            simulation.algorithm, simulation.engine.local, simulation.engine.data._data, SEED
        ).evaluate(outcome.snapshot.state["params"], simulation.evaluation_clients, "test")
        np.testing.assert_array_equal(outcome.scores.means("loss"), plain.means("loss"))
        assert "attack_success" not in outcome.row


def test_triggered_data_is_all_triggered(make_federation) -> None:
    federation = make_federation(make_clients(), CLASSES)
    data = TriggeredData(federation, prepared(Backdoor(size=1, value=9.0)), SEED)
    found = data.samples(np.array([4, 0]), "test")
    honest = federation.samples(np.array([4, 0]), "test")
    assert (found.columns["x"][:, -1] == 9).all()
    np.testing.assert_array_equal(found.columns["y"], honest.columns["y"])
    np.testing.assert_array_equal(found.columns["x"][:, :-1], honest.columns["x"][:, :-1])


# --- refused ----------------------------------------------------------------------------------------------------------

PICTURES = DataSpec("classification", 10, (1, 8, 8))
TEXTS = DataSpec("next_token", 30, (9,), padding=0)
RATINGS = DataSpec("rating", 1, (), inputs=(InputSpec("user", (), 5), InputSpec("item", (), 5)))


@pytest.mark.parametrize(
    ("attack", "spec", "sentence"),
    [
        (lambda: LabelFlip(to="class", target=10), PICTURES, "attack.target must be a class from 0 to 9, not 10"),
        (lambda: LabelFlip(to="permutation", permutation=(0, 1)), PICTURES, "attack.permutation must hold every class"),
        (lambda: LabelFlip(permutation=(1, 0)), PICTURES, "attack.permutation is for attack.to=permutation"),
        (lambda: LabelFlip(target=3), PICTURES, "attack.target is for attack.to=class, not for next"),
        (lambda: LabelFlip(), TEXTS, "label_flip needs samples with labels, and this federation has sequences"),
        (lambda: LabelFlip(), DataSpec("regression", 1, (4,)), "label_flip needs samples with labels"),
        (lambda: LabelFlip(poisoned_share=0.0), PICTURES, "attack.poisoned_share must be above 0"),
        (lambda: LabelFlip(poisoned_share=1.1), PICTURES, "attack.poisoned_share must be above 0 and at most 1"),
        (lambda: LabelFlip(scale=0.0), PICTURES, "attack.scale must be above 0"),
        (lambda: Backdoor(target=-1), PICTURES, "attack.target must be a class from 0 to 9, not -1"),
        (lambda: Backdoor(size=9), PICTURES, "attack.size is 9, but a picture here has 8 x 8 numbers"),
        (lambda: Backdoor(size=6), FEATURE_SPEC, "attack.size is 6, but a sample here has 5 numbers"),
        (lambda: Backdoor(size=0), PICTURES, "attack.size must be at least 1"),
        (lambda: Backdoor(token=3), PICTURES, "attack.token is for texts"),
        (lambda: Backdoor(token=30), TEXTS, "attack.token must be a token from 0 to 29 that is not padding, not 30"),
        (lambda: Backdoor(token=0, target=4), TEXTS, "that is not padding, not 0"),
        (lambda: Backdoor(token="nonsense", target=4), TEXTS, "attack.token is 'nonsense', which is no token"),
        (lambda: Backdoor(token=4, target=4), TEXTS, "attack.target must be another token than the trigger"),
        (lambda: Backdoor(target="x"), TEXTS, "attack.target is 'x', which is no label of this federation"),
        (lambda: Backdoor(target=0), TEXTS, "attack.target must be another token than the trigger, and not padding"),
        (lambda: Backdoor(), DataSpec("regression", 1, (4,)), "backdoor needs pictures, features or texts with labels"),
        (lambda: Backdoor(), RATINGS, "backdoor needs pictures, features or texts with labels"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(attack, spec, sentence) -> None:
    with pytest.raises(BadInputError, match=sentence):
        prepared(attack(), spec)
