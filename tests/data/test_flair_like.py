"""The stand-in for FLAIR: the published statistics, the same bits for the same seed, users that can be drawn alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import fedarena
from fedarena.core.errors import BadInputError
from fedarena.data import load_federation
from fedarena.data.flair_like.drawing import Images, draw
from fedarena.data.flair_like.labels import coarse_of, fine_names, fine_of, fine_per_coarse, scenes_of
from fedarena.data.flair_like.looks import LOOKS
from fedarena.data.flair_like.published import coarse_labels, published
from fedarena.data.flair_like.scenes import SCENES
from fedarena.data.flair_like.users import groups, sizes
from fedarena.data.registry import FEDERATIONS
from fedarena.data.splits import apportion
from fedarena.data.store.schema import GROUPS

SEED = 5


@pytest.fixture(scope="module")
def everybody() -> SimpleNamespace:
    """All of FLAIR's users with the labels of all their images, of which none is drawn."""
    users = np.arange(published()["users"])
    size, group = sizes(SEED, users), groups(SEED, users)
    user = np.repeat(users, size)
    number = np.arange(len(user)) - np.repeat(np.cumsum(size) - size, size)
    coarse = coarse_of(SEED, user, number, size[user], scenes_of(SEED, user, number))
    of_user = np.add.reduceat(coarse, np.cumsum(size) - size, axis=0, dtype=np.int64) > 0
    return SimpleNamespace(size=size, group=group, user=user, number=number, coarse=coarse, of_user=of_user)


def different(values: np.ndarray) -> np.ndarray:
    """As `np.unique`, which takes some seconds for a million numbers."""
    values = np.sort(values)
    return values[np.append(True, np.diff(values) > 0)]


def quartiles(values: np.ndarray) -> dict[str, float]:
    return {f"q{share}": np.quantile(values, share / 100) for share in (25, 50, 75)}


def test_users_are_as_many_and_as_large_as_published(everybody: SimpleNamespace) -> None:
    figures, size = published()["images_per_user"], everybody.size
    assert size.sum() == pytest.approx(published()["images"], rel=0.01)
    assert (size.mean(), size.std()) == pytest.approx((figures["mean"], figures["std"]), rel=0.05)
    assert (size.min(), quartiles(size)) == (1, {name: figures[name] for name in ("q25", "q50", "q75")})
    assert 0.7 * figures["max"] < size.max() <= figures["max"]
    largest = np.sort(size)[::-1]
    have_half = np.searchsorted(np.cumsum(largest), size.sum() / 2) / len(size)
    assert have_half == pytest.approx(published()["users_with_half_the_images"], rel=0.05)
    for place, name in enumerate(GROUPS):
        assert (everybody.group == place).sum() == pytest.approx(published()["users_by_group"][name], abs=2)
        images = size[everybody.group == place].sum()
        assert images == pytest.approx(published()["images_by_group"][name], rel=0.4)  # 1 % is one user's


def test_labels_are_as_frequent_as_published(everybody: SimpleNamespace) -> None:
    for place, (name, images) in enumerate(published()["images_with_label"].items()):
        found = everybody.coarse[:, place].sum()
        assert found == pytest.approx(images, rel=0.06 if images > 30_000 else 0.2), name


def test_images_and_users_have_as_many_labels_as_published(everybody: SimpleNamespace) -> None:
    figures, labels = published()["labels_per_image"], everybody.coarse.sum(axis=1)
    assert (labels.mean(), labels.std()) == pytest.approx((figures["mean"], figures["std"]), rel=0.02)
    assert (labels.min(), quartiles(labels)) == (1, {name: figures[name] for name in ("q25", "q50", "q75")})
    assert abs(labels.max() - figures["max"]) <= 1
    figures, labels = published()["labels_per_user"], everybody.of_user.sum(axis=1)
    assert (labels.mean(), labels.std()) == pytest.approx((figures["mean"], figures["std"]), rel=0.05)
    assert quartiles(labels) == {name: figures[name] for name in ("q25", "q50", "q75")}
    assert labels.max() == figures["max"]


def test_labels_are_on_as_many_users_as_published(everybody: SimpleNamespace) -> None:
    shares = dict(zip(coarse_labels(), everybody.of_user.mean(axis=0), strict=True))
    for name, share in published()["users_with_label"].items():
        assert shares[name] == pytest.approx(share, rel=0.02 if share > 0.5 else 0.1), name


def test_fine_labels_are_as_rare_as_published(everybody: SimpleNamespace) -> None:
    labels, users = published()["fine_labels"], published()["users"]
    assert len(fine_names()) == len(set(fine_names())) == fine_per_coarse().sum() == labels
    row, fine = fine_of(SEED, everybody.user, everybody.number, everybody.coarse)
    coarse_of_fine = np.repeat(np.arange(len(coarse_labels())), fine_per_coarse())
    assert everybody.coarse[row, coarse_of_fine[fine]].all()  # no fine label without its coarse one, and the other way
    assert len(different(row * 17 + coarse_of_fine[fine])) == everybody.coarse.sum()
    on_users = np.bincount(different(everybody.user[row] * labels + fine) % labels, minlength=labels)
    rare = (on_users < users / 1000).sum()
    assert rare == pytest.approx(published()["fine_labels_on_under_a_thousandth_of_users"], rel=0.03)
    in_training = np.bincount(fine[everybody.group[everybody.user[row]] == 0], minlength=labels)
    few, none = (in_training < 20).sum(), (in_training == 0).sum()
    assert few == pytest.approx(published()["fine_labels_with_under_20_training_images"], rel=0.3)
    assert none == pytest.approx(published()["fine_labels_without_training_images"], abs=8)


def test_labels_go_together_and_users_have_favourites(everybody: SimpleNamespace) -> None:
    together = np.corrcoef(everybody.coarse[:, :10].T)
    names = list(coarse_labels())
    assert together[names.index("food"), names.index("outdoor")] < -0.1
    assert together[names.index("outdoor"), names.index("plant")] > 0.1
    assert together[names.index("interior_room"), names.index("structure")] > 0.05
    # Two images of a user share more labels than two of different users.
    some = np.flatnonzero((everybody.number == 1) & (everybody.size[everybody.user] < 20))
    same = (everybody.coarse[some] & everybody.coarse[some - 1]).sum(axis=1).mean()
    others = (everybody.coarse[some] & np.roll(everybody.coarse[some - 1], 1, axis=0)).sum(axis=1).mean()
    assert same > 1.2 * others


@pytest.mark.parametrize("users", [30, 1000])
def test_few_users_have_the_same_shape(users: int) -> None:
    some = np.arange(users)
    size = sizes(SEED, some)
    assert quartiles(size) == pytest.approx({"q25": 1, "q50": 2, "q75": 5}, abs=1)
    assert np.bincount(groups(SEED, some)).tolist() == [users * 8 // 10, users // 10, users // 10]


def test_users_do_not_depend_on_others() -> None:
    few = load_federation("flair_like", {"users": 20, "side": 16, "seed": 3})
    more = load_federation("flair_like", {"users": 60, "side": 16, "seed": 3})
    of_others = load_federation("flair_like", {"users": 20, "side": 16, "seed": 4})
    assert few.client_ids(few.clients("all")) == more.client_ids(np.arange(20))
    for client in range(20):
        one, same = few.samples([client], "all").columns, more.samples([client], "all").columns
        for name in ("x", "y"):
            np.testing.assert_array_equal(one[name], same[name])
    assert few.samples([0], "all").columns["x"].mean() != of_others.samples([0], "all").columns["x"].mean()


def test_an_image_alone_is_the_same() -> None:
    user, number = np.array([4, 4, 9]), np.array([0, 1, 0])
    row, label = np.array([0, 0, 1, 2]), np.array([1, 700, 30, 1600])
    three = draw(SEED, Images(user, number, row, label), 24, 0.1)
    alone = draw(SEED, Images(user[1:2], number[1:2], np.array([0]), np.array([30])), 24, 0.1)
    np.testing.assert_array_equal(three[1:2], alone)
    # What is drawn does not depend on the order in which labels are named.
    other = draw(SEED, Images(user, number, row[[1, 0, 2, 3]], label[[1, 0, 2, 3]]), 24, 0.1)
    np.testing.assert_array_equal(three, other)


def test_taxonomies_tell_the_same() -> None:
    options = {"users": 40, "side": 8, "max_samples": 20}
    coarse, fine, structure = (
        load_federation("flair_like", {**options, "labels": labels}) for labels in ("coarse", "fine", "structure")
    )
    of = {f.task.classes: f.samples(f.clients("all"), "all").columns for f in (coarse, fine, structure)}
    assert sorted(of) == [1, 17, 1628]
    np.testing.assert_array_equal(of[17]["x"], of[1628]["x"])
    np.testing.assert_array_equal(of[17]["y"][:, :1], of[1]["y"])
    starts = np.cumsum(fine_per_coarse()) - fine_per_coarse()
    np.testing.assert_array_equal(np.maximum.reduceat(of[1628]["y"], starts, axis=1), of[17]["y"])
    assert (coarse.task.kind, structure.task.label_names) == ("multi_label", ("structure",))
    assert coarse.counts(coarse.clients("train")).max() == 20


def test_division_into_users_or_images() -> None:
    options = {"users": 300, "side": 8, "max_samples": 10, "seed": SEED}
    by_client = load_federation("flair_like", options)
    assert by_client.counts(by_client.clients("train")).max() == 10
    assert by_client.counts(by_client.clients("test")).max() > 10
    size = sizes(SEED, np.arange(300))
    within = load_federation("flair_like", {**options, "split": "within_client", "validation_fraction": 0.1})
    assert len(within.clients("train")) == 300
    assert (
        within.counts(within.clients(), "train").tolist()
        == np.minimum(apportion(size, (0.8, 0.1, 0.1))[:, 0], 10).tolist()
    )
    assert (within.counts(within.clients(), "test")[size >= 2] >= 1).all()
    largest = int(size.argmax())
    x = within.samples([largest], "test").columns["x"]
    assert len({picture.tobytes() for picture in x}) == len(x) == apportion(size, (0.8, 0.1, 0.1))[largest, 2]


def test_large_pictures_are_jpegs_and_pngs_lose_nothing() -> None:
    options = {"users": 10, "max_samples": 3, "side": 64}
    jpeg = load_federation("flair_like", options)
    png = load_federation("flair_like", {**options, "encoding": "png"})
    plain = load_federation("flair_like", {**options, "encoding": "none"})
    assert [f.columns["x"].encoding for f in (jpeg, png, plain)] == ["jpeg", "png", None]
    of_jpeg, of_png, of_plain = (f.samples(f.clients("all"), "all").columns["x"] for f in (jpeg, png, plain))
    np.testing.assert_array_equal(of_png, of_plain)
    assert 0 < np.abs(of_jpeg.astype(float) - of_plain).mean() < 12
    assert load_federation("flair_like", {**options, "side": 32}).columns["x"].encoding is None


def test_pictures_show_their_labels() -> None:
    """Already a linear model on pixels tells frequent labels."""
    federation = load_federation("flair_like", {"users": 400, "side": 16})
    x, y = (
        np.concatenate([federation.samples(federation.clients(group), group).columns[name] for group in GROUPS])
        for name in ("x", "y")
    )
    features = x.reshape(len(x), -1) / 255
    half = len(x) // 2
    for label in ("outdoor", "plant", "food"):
        place = coarse_labels().index(label)
        model = LogisticRegression(C=0.01, max_iter=200).fit(features[:half], y[:half, place])
        scores = model.decision_function(features[half:])
        assert roc_auc_score(y[half:, place], scores) > 0.7, label


def test_users_have_a_style() -> None:
    federation = load_federation("flair_like", {"users": 400, "side": 16})
    everybody = federation.clients("all")
    clients = everybody[federation.counts(everybody) >= 10]
    means = [federation.samples([c], "all").columns["x"].mean(axis=(2, 3)) for c in clients]
    between = np.var([m.mean(axis=0) for m in means], axis=0).mean()
    by_chance = np.mean([m.var(axis=0).mean() / len(m) for m in means])
    assert between > 3 * by_chance


def test_it_is_called_a_stand_in() -> None:
    assert "stand-in for FLAIR" in load_federation("flair_like", {"users": 10, "side": 8}).notes[0]
    assert FEDERATIONS.get("flair_like").__doc__.startswith("A stand-in for FLAIR")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"users": 9}, "federation.users"),
        ({"side": 4}, "federation.side"),
        ({"labels": "finest"}, "federation.labels"),
        ({"max_samples": 0}, "federation.max_samples"),
        ({"encoding": "gif"}, "federation.encoding"),
    ],
)
def test_wrong_options(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        load_federation("flair_like", options)


def test_every_label_has_a_look_and_a_scene() -> None:
    assert set(LOOKS) == set(coarse_labels())
    assert set().union(*(labels for _, labels in SCENES.values())) == set(coarse_labels())


@pytest.mark.parametrize("training", ["natural", "centralized"])
def test_runs_and_their_reports_call_it_a_stand_in(tmp_path: Path, training: str) -> None:
    result = fedarena.run(
        federation={"name": "flair_like", "users": 20, "side": 8},
        model="logistic_regression",
        training=training,
        rounds=1,
        cohort=1,
        local={"steps": 1},
        engine="reference",
        runs_folder=tmp_path,
        progress=False,
    )
    assert "stand-in for FLAIR" in result.federation_notes[0]
    assert "stand-in for FLAIR" in (result.path / "report.html").read_text(encoding="utf-8")
