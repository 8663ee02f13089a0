"""What pictures go through before a model sees them: the right pixels, the right chances, the same in every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import config, content
from test_cohort import SIZES, ClientsInMemory, assert_same, lanes_are_used_again, train  # noqa: F401
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fedarena.algorithms import ALGORITHMS, FedAvg
from fedarena.cli import main
from fedarena.core.errors import BadInputError
from fedarena.models import AUGMENTATIONS, Augmentation, DataSpec, build_model, make_task
from fedarena.models.augmentation import CropAndFlip, Flip, model_sees, sample_keys
from fedarena.models.augmentation.pixels import resized
from fedarena.models.augmentation.trying import try_out_augmentation
from fedarena.models.keyed_random import derived
from fedarena.privacy.dp_sgd import PrivateTraining
from fedarena.privacy.extended import extended
from fedarena.runs.building import prepare
from fedarena.runs.config import resolve
from fedarena.runs.identity import settings_fingerprint
from fedarena.runs.observer import Observer
from fedarena.runs.run import Run, start_run
from fedarena.train import CohortEngine, Engine, LocalTraining, ReferenceEngine
from fedarena.train.batches import dropout_keys

SPEC = DataSpec("classification", 3, (2, 6, 7))
LOCAL = LocalTraining(epochs=2, batch_size=8, lr=0.1)
KINDS: dict[str, Augmentation] = {
    "crop": CropAndFlip(size=5, flip=False),
    "crop and both flips": CropAndFlip(size=4, flip_vertical=True),
    "padded": CropAndFlip(padding=2),
    "padded, larger, centre": CropAndFlip(size=8, padding=1, evaluation="center"),
    "flip": Flip(),
    "both flips": Flip(vertical=True),
}


def keys_of(samples: int, key: int = 5) -> Tensor:
    return sample_keys(torch.tensor(key), samples)


def numbered(samples: int, height: int, width: int) -> Tensor:
    """Pictures of two channels whose pixels say where they are: rows in the first channel, columns in the second."""
    rows, columns = torch.meshgrid(torch.arange(height) + 1.0, torch.arange(width) + 1.0, indexing="ij")
    return torch.stack([rows, columns]).expand(samples, 2, height, width)


def make_engine(kind: Any, augmentation: Augmentation, algorithm: Any, **options: Any) -> Engine:
    seen = model_sees(augmentation, SPEC, "…")
    module = build_model("cnn", seen, {"channels": (3, 4), "hidden": 5}, seed=0)
    task = make_task(module, SPEC)
    task.augmentation = augmentation
    algorithm.prepare(len(SIZES), LOCAL)
    return kind(task, algorithm, LOCAL, ClientsInMemory(SPEC), seed=3, dtype="float64", **options)


# --- pixels and chances ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_what_is_trained_on_is_a_piece_of_the_padded_picture(name: str) -> None:
    augmentation, samples = KINDS[name], 200
    found = augmentation.training(numbered(samples, 6, 7), keys_of(samples))
    _, height, width = augmentation.shape(SPEC.input_shape)
    assert found.shape == (samples, 2, height, width)
    margin = getattr(augmentation, "padding", 0)
    source = F.pad(numbered(1, 6, 7)[0], [margin] * 4)
    pieces = {
        piece.numpy().tobytes()
        for top in range(source.shape[1] - height + 1)
        for left in range(source.shape[2] - width + 1)
        for crop in [source[:, top : top + height, left : left + width]]
        for mirrored in ([crop, crop.flip(2)] if getattr(augmentation, "flip", True) else [crop])
        for piece in (
            [mirrored, mirrored.flip(1)]
            if getattr(augmentation, "flip_vertical", False) or getattr(augmentation, "vertical", False)
            else [mirrored]
        )
    }
    trained_on = {picture.contiguous().numpy().tobytes() for picture in found}
    assert trained_on <= pieces
    assert len(trained_on) > 0.85 * len(pieces)  # 200 draws from at most 80 pieces


def test_places_and_flips_are_drawn_evenly_and_independently() -> None:
    samples, height, width = 60_000, 6, 7
    found = CropAndFlip(size=4, flip_vertical=True).training(numbered(samples, height, width), keys_of(samples))
    upside_down = (found[:, 0, 0, 0] > found[:, 0, 1, 0]).long()
    mirrored = (found[:, 1, 0, 0] > found[:, 1, 0, 1]).long()
    tops, lefts = (found[:, axis].flatten(1).min(1).values.long() - 1 for axis in (0, 1))
    cells = ((tops * 4 + lefts) * 2 + upside_down) * 2 + mirrored
    counts = torch.bincount(cells, minlength=3 * 4 * 4).double()
    assert len(counts) == 48
    expected = samples / 48
    assert ((counts - expected) ** 2 / expected).sum() < 47 + 5 * (2 * 47) ** 0.5  # chi square, five deviations
    lag_one = (cells[1:] == cells[:-1]).double().mean()
    assert abs(lag_one - 1 / 48) < 5 * (1 / 48 / samples) ** 0.5


def test_keys_of_rounds_clients_steps_and_samples_differ() -> None:
    keys = [
        sample_keys(torch.tensor(dropout_keys(1, round, client, step)), 4)
        for round in (1, 2)
        for client in (0, 1)
        for step in (1, 2)
    ]
    assert len(torch.cat(keys).unique()) == 32
    key = torch.tensor(dropout_keys(1, 1, 0, 1))
    of_dropout = torch.stack([derived(key, n) for n in range(-3, 100)])
    assert not torch.isin(keys[0], of_dropout).any()


def test_a_sample_is_augmented_alike_whoever_follows_it() -> None:
    x = torch.rand(9, 2, 6, 7)
    for augmentation in KINDS.values():
        whole = augmentation.training(x, keys_of(9))
        assert torch.equal(augmentation.training(x[:4], keys_of(4)), whole[:4])


@pytest.mark.parametrize("name", KINDS)
def test_many_clients_at_once_and_traced_give_the_same_bits(name: str) -> None:
    augmentation = KINDS[name]
    x, keys = torch.rand(3, 5, 2, 6, 7), torch.from_numpy(dropout_keys(1, 2, np.arange(3), 3))

    def of_client(x: Tensor, key: Tensor) -> Tensor:
        return augmentation.training(x, sample_keys(key, len(x)))

    one_by_one = torch.stack([of_client(x[i], keys[i]) for i in range(3)])
    together = torch.func.vmap(of_client)
    assert torch.equal(together(x, keys), one_by_one)
    others = keys.flip(0)
    assert torch.equal(make_fx(together)(x, keys)(x, others), together(x, others))


@pytest.mark.parametrize("size", [(4, 4), (6, 7), (11, 3), (20, 20)])
def test_pictures_are_resized_as_torch_does_it(size: tuple[int, int]) -> None:
    x = torch.rand(2, 3, 6, 7, dtype=torch.float64)
    expected = F.interpolate(x, size=size, mode="bilinear", antialias=True)
    torch.testing.assert_close(resized(x, *size), expected)
    torch.testing.assert_close(torch.func.vmap(lambda one: resized(one, *size))(x), expected)


def test_what_is_scored_does_not_depend_on_chance() -> None:
    x = numbered(2, 6, 7)
    assert torch.equal(CropAndFlip(size=4).evaluation(x), resized(x, 4, 4))
    assert torch.equal(CropAndFlip(size=4, evaluation="center").evaluation(x), x[:, :, 1:5, 1:5])
    for unchanged in (CropAndFlip(padding=2), Flip(), CropAndFlip(padding=2, evaluation="center")):
        assert torch.equal(unchanged.evaluation(x), x)


def test_a_task_trains_on_drawn_crops_and_scores_the_whole_picture() -> None:
    augmentation = CropAndFlip(size=4)
    engine = make_engine(ReferenceEngine, augmentation, FedAvg())
    x = torch.rand(5, *SPEC.input_shape, dtype=torch.float64)
    batch = {"x": x, "y": torch.zeros(5, dtype=torch.long)}
    key = torch.tensor(7)
    (scored,) = engine.task.model_inputs(batch)
    (trained,) = engine.task.model_inputs({**batch, "key": key})
    assert torch.equal(scored, augmentation.evaluation(x))
    assert torch.equal(trained, augmentation.training(x, sample_keys(key, 5)))
    engine.task.module.eval()
    torch.testing.assert_close(engine.task.predict({}, batch), engine.task.module(scored))


# --- engines ---------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", KINDS)
def test_clients_train_as_one_at_a_time(name: str) -> None:
    reference = make_engine(ReferenceEngine, KINDS[name], FedAvg())
    broadcast, clients = {"params": reference.initial_params()}, list(range(len(SIZES)))
    expected = train(reference, clients, broadcast, {})
    found = []
    for lanes, workers in ((4, 1), (3, 1), (3, 2)):
        cohort = make_engine(CohortEngine, KINDS[name], FedAvg(), lanes=lanes, workers=workers)
        assert cohort.notes == []
        found.append(train(cohort, clients, broadcast, {}))
        assert_same(expected, found[-1])
    assert_same(*found[1:], tolerance=0)
    another_round = train(reference, clients, broadcast, {}, round=2)
    with pytest.raises(AssertionError):
        assert_same(expected, another_round)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted({*ALGORITHMS.names()} - {"biasprompt"}))
def test_algorithms_train_as_one_at_a_time(name: str) -> None:
    """Two rounds with what clients keep, and then personal models."""
    clients = list(range(1, len(SIZES)))
    outcomes, scores = [], []
    for kind, options in ((ReferenceEngine, {}), (CohortEngine, {"lanes": 3})):
        algorithm = ALGORITHMS.get(name)()
        engine = make_engine(kind, KINDS["crop and both flips"], algorithm, **options)
        broadcast = algorithm.broadcast(algorithm.server_init(engine.initial_params()))
        first = train(engine, clients, broadcast, {})
        memories = {client: memory for client, (_, memory, _, _) in first.items() if client % 2}
        outcomes.append((first, train(engine, clients, broadcast, memories, round=2)))
        if algorithm.personalizes:
            scored = engine.evaluate_personal(broadcast, memories, np.array(clients), "test", 2)
            scores.append(scored.means("loss"))
    for reference, cohort in zip(*outcomes, strict=True):
        assert_same(reference, cohort)
    if scores:
        np.testing.assert_allclose(*scores, rtol=0, atol=1e-10)


def test_private_gradients_of_samples_are_those_of_the_pictures_in_the_batch() -> None:
    """Without noise and with a bound that nothing reaches, DP-SGD is SGD, on the same crops."""
    augmentation, clients = KINDS["crop and both flips"], [1, 3, 5]
    plain = make_engine(ReferenceEngine, augmentation, FedAvg())
    broadcast = {"params": plain.initial_params()}
    expected = train(plain, clients, broadcast, {})
    for kind, options in ((ReferenceEngine, {}), (CohortEngine, {"lanes": 2})):
        private = extended(FedAvg(), PrivateTraining, clip_norm=1e9, noise_multiplier=0.0)
        assert_same(expected, train(make_engine(kind, augmentation, private, **options), clients, broadcast, {}))


# --- runs ------------------------------------------------------------------------------------------------------------

PICTURES = {
    "federation": {"name": "shapes_tags", "clients": 12},
    "model": {"name": "cnn", "channels": [4, 4], "hidden": 8},
    "algorithm": "fedavg",
    "rounds": 4,
    "evaluation.every": 2,
    "augmentation": {"name": "crop_and_flip", "size": 12},
}


def test_pieces_give_the_bits_of_one_go(tmp_path: Path) -> None:
    start_run(config(**PICTURES), tmp_path / "one go")
    run = Run.create(config(**PICTURES), tmp_path)
    for piece in (1, 2, None):
        run.advance(piece)
    run.close()
    assert content(tmp_path / "small") == content(tmp_path / "one go" / "small")


def test_models_are_built_for_what_they_see() -> None:
    experiment = prepare(config(**PICTURES), Observer())
    shape = experiment.federation.columns["x"].shape
    plain = prepare(config(**PICTURES, **{"augmentation.name": "none"}), Observer())
    augmented, alone = (sum(p.numel() for p in one.simulation.task.module.parameters()) for one in (experiment, plain))
    assert shape[1] > 12
    assert augmented < alone  # its dense layer is for smaller pictures
    assert experiment.simulation.flops_per_sample < plain.simulation.flops_per_sample


def test_triggers_are_put_on_before_pictures_are_augmented(tmp_path: Path) -> None:
    attack = {"name": "backdoor", "share": 0.5, "size": 2, "poisoned_share": 1.0}
    results = [
        start_run(config(**PICTURES, attack=attack, engine={"name": name, "dtype": "float64"}), tmp_path / name)
        for name in ("cohort", "reference")
    ]
    scored = [run.rounds["attack_success"].drop_null().to_pylist() for run in results]
    assert len(scored[0]) == 3
    np.testing.assert_allclose(*scored, atol=1e-10)
    experiment = prepare(config(**PICTURES, attack=attack), Observer())
    data = experiment.simulation.engine.data
    assert data.samples(np.array([0]), "train").columns["x"].shape[1:] == experiment.federation.columns["x"].shape


def test_runs_from_before_there_were_augmentations_can_be_resumed() -> None:
    none, flip = (resolve({"federation": "digits", "augmentation": name}) for name in ("none", "flip"))

    class FromBefore:
        """A configuration that knows of nothing that came later."""

        def to_dict(self) -> dict[str, Any]:
            settings = none.to_dict()
            del settings["augmentation"]
            return settings

    assert settings_fingerprint(none) == settings_fingerprint(FromBefore())
    assert settings_fingerprint(none) != settings_fingerprint(flip)


# --- own augmentations, and what is refused --------------------------------------------------------------------------


class Brighter(Augmentation):
    """Pictures of another brightness, as somebody might write it."""

    def __init__(self, *, most: float = 0.2):
        self.most = most

    def training(self, x: Tensor, keys: Tensor) -> Tensor:
        share = (derived(keys, 1).to(x.dtype) * 2.0**-63).view(-1, 1, 1, 1)
        return x + self.most * share


def test_an_augmentation_of_ones_own(tmp_path: Path) -> None:
    runs = [
        start_run(config(**PICTURES | {"augmentation": one}), tmp_path / str(number))
        for number, one in enumerate(({"name": Brighter, "most": 0.5}, {"name": "none"}))
    ]
    assert runs[0].config["augmentation"] == {"name": f"{__name__}:Brighter", "most": 0.5}
    assert runs[0].rounds["loss"].to_pylist()[-1] != runs[1].rounds["loss"].to_pylist()[-1]


class FromGenerator(Augmentation):
    def training(self, x: Tensor, keys: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class OfNumPy(Augmentation):
    def training(self, x: Tensor, keys: Tensor) -> Tensor:
        np.random.rand()
        return x


class OtherShape(Augmentation):
    def training(self, x: Tensor, keys: Tensor) -> Tensor:
        return x[..., 1:]


class Mixing(Augmentation):
    def evaluation(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Overwriting(Augmentation):
    def training(self, x: Tensor, keys: Tensor) -> Tensor:
        x *= 0.5
        return x


class Failing(Augmentation):
    def training(self, x: Tensor, keys: Tensor) -> Tensor:
        raise RuntimeError("too dark")


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (FromGenerator, "training gives something else when it is called again; draw from the keys"),
        (OfNumPy, "training gives something else when it is called again; draw from the keys"),
        (
            OtherShape,
            r"training gives \[3, 2, 6, 6\] of torch.float32 for 3 samples, but \[3, 2, 6, 7\] of t",
        ),
        (Mixing, "what evaluation makes of a sample depends on the others in the batch"),
        (Overwriting, "training overwrites the samples that it is given"),
        (Failing, "does not work on images of shape .*: training: RuntimeError: too dark"),
    ],
)
def test_what_an_augmentation_must_not_do_is_refused(kind: type[Augmentation], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        try_out_augmentation(kind(), SPEC, SPEC, "own")


class Single(Augmentation):
    def training(self, x: Tensor, keys: Tensor) -> Tensor:
        return x.float()


class OwnLoop(FedAvg):
    def train(self, client, model, data):
        pass


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"augmentation.size": 99},
            r"augmentation\.size is 99, and pictures of this federation have 16 x 16 pixels; c",
        ),
        ({"augmentation.size": 0}, r"augmentation\.size: input should be greater than or equal to 1"),
        (
            {"augmentation": {"name": "crop_and_flip", "size": 40, "padding": 3}},
            r"have 16 x 16 pixels \(22 with padding\); choose at most 22",
        ),
        ({"augmentation.padding": 16}, r"augmentation\.padding is 16, and pictures of this federation have 16 x 16"),
        (
            {"federation": {"name": "synthetic"}, "model": "logistic_regression"},
            r"augmentation=crop_and_flip is for pictures \(channels, height, width\), and samples .* shape \[60\]",
        ),
        (
            {"federation": {"name": "chitchat"}, "model": "char_mlp"},
            "augmentation=crop_and_flip changes pictures or other samples of numbers, and this federation has",
        ),
        ({"augmentation": {"size": 12}}, r"To set options of augmentation \('size'\), name it: augmentation=crop_and"),
        ({"augmentation": "cropp_and_flip"}, "no augmentation called 'cropp_and_flip'; did you mean 'crop_and_flip'"),
        ({"augmentation": "torch.nn:Linear"}, "must be a subclass of fedarena.models.augmentation.base.Augmentation"),
        (
            {"augmentation": Single, "engine": {"name": "cohort", "dtype": "float64"}},
            r"training gives .* of torch\.float32 for 3 samples, but .* of torch\.float64 is needed",
        ),
        ({"algorithm": OwnLoop}, "OwnLoop has a training loop of its own, which augmentation cannot reach"),
    ],
)
def test_bad_input_gets_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        prepare(config(**{**PICTURES, **settings}), Observer())


def test_there_is_a_list_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["list", "augmentations"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in AUGMENTATIONS.names())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")
@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize("name", KINDS)
def test_a_gpu_trains_on_the_same_crops(name: str, compile: bool) -> None:
    reference = make_engine(ReferenceEngine, KINDS[name], FedAvg(), device="cpu")
    broadcast, clients = {"params": reference.initial_params()}, list(range(len(SIZES)))
    expected = train(reference, clients, broadcast, {})
    engine = make_engine(CohortEngine, KINDS[name], FedAvg(), lanes=4, device="cuda", compile=compile)
    found = train(engine, clients, engine.place(broadcast), {})
    for client, (update, *_) in expected.items():
        for parameter, value in update["params"].items():
            torch.testing.assert_close(found[client][0]["params"][parameter].cpu(), value, rtol=0, atol=1e-10)
    scores = [one.evaluate(one.place(broadcast)["params"], np.array(clients), "test") for one in (reference, engine)]
    np.testing.assert_allclose(*(one.means("loss") for one in scores), rtol=0, atol=1e-10)
