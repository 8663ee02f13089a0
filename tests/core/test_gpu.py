"""The cohort engine on a GPU, where there is one: the same numbers as on the CPU, and the same bits twice."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from test_cohort import FAMILIES, LOCALS, SIZES, make_engine, train
from test_image_networks import SOME_CLIENTS, all_blocks, engine_for_all_blocks
from test_job_hyperparameters import own_settings
from torch.nn import functional as F

from fedarena.algorithms import ALGORITHMS, FedAvg, Scaffold
from fedarena.models import MODELS
from fedarena.privacy import DPSGD
from fedarena.simulate import PROTOCOLS, Simulation, simulate
from fedarena.simulate.trusted import TrustedTraining
from fedarena.train import (
    CohortEngine,
    Job,
    LocalTraining,
    ReferenceEngine,
    beside,
    captured,
    drawing,
    train_jobs,
)
from fedarena.train.hardware import Hardware
from fedarena.transforms import AGGREGATORS, ATTACKS, DOWNLOADS, TRANSFORMS, Clip, ClipAndNoise
from fedarena.transforms.aggregators import FixedMean
from fedarena.transforms.attacks import AttackedRun, NoAttack
from fedarena.transforms.clip_and_noise import Quantile
from fedarena.transforms.correlated_noise import ClipAndCorrelatedNoise
from fedarena.transforms.poisoned_data import PoisonedData

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")


@pytest.mark.parametrize("plan", ["together", "beside", "apart"])
@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize("model", FAMILIES)
def test_models_train_as_on_the_cpu(model: str, compile: bool, plan: str) -> None:
    reference = make_engine(ReferenceEngine, model, FedAvg(), LOCALS["momentum, decay"], device="cpu")
    broadcast, clients = {"params": reference.initial_params()}, list(range(len(SIZES)))
    expected = train(reference, clients, broadcast, {})
    runs = []
    for _ in range(2):
        options = {"device": "cuda", "lanes": 4, "compile": compile, "plan": plan}
        engine = make_engine(CohortEngine, model, FedAvg(), LOCALS["momentum, decay"], **options)
        runs.append(train(engine, clients, engine.place(broadcast), {}))
    for client, (update, *_) in expected.items():
        for name, value in update["params"].items():
            first, second = (run[client][0]["params"][name] for run in runs)
            torch.testing.assert_close(first.cpu(), value, rtol=0, atol=1e-10)
            assert torch.equal(first, second)


@pytest.mark.parametrize("model", [model for model in FAMILIES if "dropout" in model])
def test_models_with_dropout_are_compiled(model: str) -> None:
    engine = make_engine(CohortEngine, model, FedAvg(), LOCALS["epochs"], device="cuda", lanes=4)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The training step runs without being compiled")
        train(engine, list(range(len(SIZES))), {"params": engine.initial_params()}, {})


def test_cohorts_of_many_sizes_train_as_on_the_cpu_and_compile_once(monkeypatch) -> None:
    reference = make_engine(ReferenceEngine, "cnn, dropout", FedAvg(), LOCALS["epochs"], device="cpu")
    engine = make_engine(CohortEngine, "cnn, dropout", FedAvg(), LOCALS["epochs"], device="cuda")
    engine.expect_varying_cohorts(4)
    compiled = []
    compile_step = captured.compiled
    monkeypatch.setattr(captured, "compiled", lambda *args: compiled.append(1) or compile_step(*args))
    broadcast = {"params": reference.initial_params()}
    for clients in ([5], [1, 2, 3, 5, 6], [3, 4, 8], list(range(10)), [5, 7]):
        expected, found = train(reference, clients, broadcast, {}), train(engine, clients, engine.place(broadcast), {})
        for client, (update, *_) in expected.items():
            for name, value in update["params"].items():
                torch.testing.assert_close(found[client][0]["params"][name].cpu(), value, rtol=0, atol=1e-10)
    assert len(compiled) <= 2  # batches of the usual width have one of few sizes


def test_what_is_evaluated_again_is_read_once() -> None:
    reference = make_engine(ReferenceEngine, "cnn", FedAvg(), LOCALS["epochs"], device="cpu")
    engine = make_engine(CohortEngine, "cnn", FedAvg(), LOCALS["epochs"], device="cuda")
    clients = np.flatnonzero(engine.data.counts(np.arange(len(SIZES)), "train"))
    params = reference.initial_params()
    expected = reference.evaluate(params, clients, "train").means("loss")
    for _ in range(2):
        found = engine.evaluate(engine.place({"params": params})["params"], clients, "train").means("loss")
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("plan", "compile"),
    [("together", False), ("together", True), ("apart", False)],
    ids=["captured", "compiled", "apart"],
)
@pytest.mark.parametrize("norm", ["group", "frozen_batch"])
def test_blocks_of_networks_for_photographs_train_as_on_the_cpu(
    norm: str, plan: str, compile: bool, monkeypatch
) -> None:
    monkeypatch.setitem(MODELS._parts, "all_blocks", all_blocks)
    reference = engine_for_all_blocks(ReferenceEngine, norm, device="cpu")
    broadcast = {"params": reference.initial_params()}
    expected = train(reference, SOME_CLIENTS, broadcast, {})
    engine = engine_for_all_blocks(CohortEngine, norm, device="cuda", lanes=4, plan=plan, compile=compile)
    found = train(engine, SOME_CLIENTS, engine.place(broadcast), {})
    for client, (update, *_) in expected.items():
        for name, value in update["params"].items():
            torch.testing.assert_close(found[client][0]["params"][name].cpu(), value, rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", ["group", "frozen_batch"])
def test_networks_for_photographs_are_rounded_no_worse_than_torchs_layers(norm: str, monkeypatch) -> None:
    """In bf16 what is sent is as near to full precision as torch's own layers come on a CPU; and the same bits twice.

    That is within 1 % for frozen norms. Group norms of noise whose mean is next to nothing make far more of it.
    """
    monkeypatch.setitem(MODELS._parts, "all_blocks", all_blocks)
    full, rounded, again = (
        trained_blocks(CohortEngine, norm, device="cuda", lanes=4, plan="apart", precision=precision)
        for precision in ("full", "bf16", "bf16")
    )
    exact = trained_blocks(ReferenceEngine, norm, device="cpu")
    monkeypatch.setattr(Hardware, "rounding", lambda _: torch.autocast("cpu", torch.bfloat16, cache_enabled=False))
    theirs = trained_blocks(ReferenceEngine, norm, device="cpu")
    for client in SOME_CLIENTS:
        error = relative_distance(rounded[client], full[client])
        assert 1e-5 < error < 1.5 * relative_distance(theirs[client], exact[client]) + 0.01
        for name, value in rounded[client].items():
            assert value.dtype == torch.float32
            assert torch.equal(value, again[client][name])


def trained_blocks(kind, norm: str, **options) -> dict[int, dict[str, torch.Tensor]]:
    """What clients send of a network of all blocks, in float32."""
    engine = engine_for_all_blocks(kind, norm, dtype="float32", **options)
    trained = train(engine, SOME_CLIENTS, {"params": engine.initial_params()}, {})
    return {client: trained[client][0]["params"] for client in SOME_CLIENTS}


def relative_distance(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    apart = torch.stack([(found[name] - value).norm() for name, value in expected.items()]).norm()
    return float(apart / torch.stack([value.norm() for value in expected.values()]).norm())


@pytest.mark.parametrize("plan", ["together", "beside", "apart"])
def test_clients_train_the_same_when_not_all_of_their_samples_fit_at_once(plan: str) -> None:
    reference = make_engine(ReferenceEngine, "cnn", FedAvg(), LOCALS["epochs"], device="cpu")
    broadcast, clients = {"params": reference.initial_params()}, list(range(len(SIZES)))
    expected = train(reference, clients, broadcast, {})
    data = reference.data.samples(np.array([int(np.argmax(SIZES))]), "train")
    options = {"device": "cuda", "lanes": 4, "plan": plan, "sample_bytes": 2 * data.columns["x"].nbytes}
    engine = make_engine(CohortEngine, "cnn", FedAvg(), LOCALS["epochs"], **options)
    assert len(engine.training_samples.parts(np.array(clients), np.array(SIZES))) > 1
    assert engine.choices["sample_bytes"] == options["sample_bytes"]
    found = train(engine, clients, engine.place(broadcast), {})
    for client, (update, *_) in expected.items():
        for name, value in update["params"].items():
            torch.testing.assert_close(found[client][0]["params"][name].cpu(), value, rtol=0, atol=1e-10)


@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_jobs_with_settings_of_their_own_train_as_on_the_cpu(model: str, compile: bool) -> None:
    local = LocalTraining(epochs=None, steps=3, batch_size=8, lr=0.1)
    names = ("local.lr", "local.weight_decay", "local.momentum", "local.steps", "local.batch_size")
    jobs = [Job(client, 1, hyperparameters=own_settings(client, *names)) for client in range(1, len(SIZES))]
    found = []
    for kind, options in ((ReferenceEngine, {"device": "cpu"}), (CohortEngine, {"device": "cuda", "compile": compile})):
        engine = make_engine(kind, model, FedAvg(), local, **options)
        engine.validate_on("validation", compare=True)
        of_client = {}
        for results in train_jobs(engine, jobs, {0: {"params": engine.initial_params()}}, {}):
            for row, client in enumerate(results.clients.tolist()):
                update = {name: t[row].cpu() for name, t in results.update["params"].items()}
                of_client[client] = (update, results.validated.after[row], results.validated.before[row])
        found.append(of_client)
    for client, (update, after, before) in found[0].items():
        others, other_after, other_before = found[1][client]
        assert other_after == pytest.approx(after, abs=1e-10)
        assert other_before == pytest.approx(before, abs=1e-10)
        for name, value in update.items():
            torch.testing.assert_close(others[name], value, rtol=0, atol=1e-10)


class WithinBatch(FedAvg):
    """A loss in which all samples of a batch, and their number, matter."""

    def local_loss(self, task, params, batch, client):
        outputs = task.predict(params, batch)
        apart = torch.exp(-torch.cdist(outputs, outputs.detach()).square()).mean()
        return F.cross_entropy(outputs, batch["y"]) + apart + 0.01 * len(batch["y"])


def freeze_first(engine):
    """The same engine of a model whose first parameters stay."""
    next(engine.task.module.parameters()).requires_grad_(False)
    return engine.like_this(engine.algorithm, engine.local, engine.data, engine.seed)


@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize("algorithm", [WithinBatch, FedAvg])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_own_losses_and_frozen_parameters_train_as_on_the_cpu(model: str, algorithm, compile: bool) -> None:
    reference = freeze_first(make_engine(ReferenceEngine, model, algorithm(), LOCALS["epochs"], device="cpu"))
    broadcast, clients = {"params": reference.initial_params()}, list(range(1, len(SIZES)))
    expected = train(reference, clients, broadcast, {})
    options = {"device": "cuda", "lanes": 4, "compile": compile}
    engine = freeze_first(make_engine(CohortEngine, model, algorithm(), LOCALS["epochs"], **options))
    found = train(engine, clients, engine.place(broadcast), {})
    for client, (update, *_) in expected.items():
        assert found[client][0]["params"].keys() == update["params"].keys()
        for name, value in update["params"].items():
            torch.testing.assert_close(found[client][0]["params"][name].cpu(), value, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ALGORITHMS.names())
@pytest.mark.parametrize("protocol", ["ideal", "buffered", "asynchronous"])
def test_algorithms_run_as_on_the_cpu(name: str, protocol: str) -> None:
    """Three rounds with memories, start losses and personal models, also from models of different age."""
    options = {"buffered": {"buffer_size": 2}, "asynchronous": {"updates_per_round": 3}}.get(protocol, {})
    run_as_on_the_cpu(ALGORITHMS.get(name), protocol=lambda: PROTOCOLS.get(protocol)(**options))


# Privacy and compression: what a simulation has besides, made anew for every device.
ON_THE_WAY = {
    **{name: {"transforms": lambda name=name: (TRANSFORMS.get(name)(),)} for name in TRANSFORMS.names()},
    **{
        f"download {name}": {"download": lambda name=name: DOWNLOADS.get(name)()}
        for name in DOWNLOADS.names()
        if name != "none"
    },
    "private": {
        "transforms": lambda: (
            ClipAndNoise(norm=0.1, noise_multiplier=0.1, clients=8, adaptive=Quantile(0.5, 0.2, bit_deviation=0.5)),
        ),
        "aggregator": lambda: FixedMean(8),
    },
    "correlated noise": {
        "transforms": lambda: (
            ClipAndCorrelatedNoise(norm=0.1, noise_multiplier=0.1, clients=8, coefficients=(1.0, 0.5, 0.25)),
        ),
        "aggregator": lambda: FixedMean(8),
    },
}


@pytest.mark.parametrize("case", ON_THE_WAY)
def test_what_happens_to_updates_is_as_on_the_cpu(case: str) -> None:
    run_as_on_the_cpu(Scaffold if case in ("private", "clip") else FedAvg, cohort=8, **ON_THE_WAY[case])


def test_private_local_steps_are_those_of_the_cpu() -> None:
    """Every sample has a gradient by itself, and noise is keyed."""
    run_as_on_the_cpu(lambda: DPSGD(noise_multiplier=0.5, clip_norm=0.3).wrapped(FedAvg()))


@pytest.mark.parametrize("name", [name for name in ATTACKS.names() if name != "none"])
def test_corrupted_clients_do_the_same_as_on_the_cpu(name: str) -> None:
    """They begin in the second round, when samples of some of them are on the GPU already."""
    options = {"backdoor": {"size": 2, "scale": 3.0}, "free_rider": {"sends": "previous"}}.get(name, {})
    kind = ATTACKS.get(name)
    row = run_as_on_the_cpu(
        FedAvg, make_attack=lambda: kind(share=0.5, from_round=2, **options), transforms=lambda: (Clip(bound=2.0),)
    )
    assert row["corrupted"]


def run_as_on_the_cpu(algorithm_class, cohort: int = 5, make_attack=NoAttack, **parts) -> dict:
    """The last row of three rounds on both; `parts` are functions that make parts of the simulation."""
    local = LocalTraining(epochs=2, batch_size=8, lr=0.1)
    clients = np.arange(1, len(SIZES))
    outcomes = []
    for device in ("cpu", "cuda"):
        algorithm, attack = algorithm_class(), make_attack()
        algorithm.prepare(len(SIZES), local)
        engine = make_engine(CohortEngine, "mlp", algorithm, local, device=device, lanes=3, compile=False)
        assert engine.notes == []
        if attack.poisons_data:
            engine = engine.like_this(algorithm, local, PoisonedData(engine.data, attack, 0), engine.seed)
        attack.prepare(AttackedRun(engine.task.spec, engine.task, len(clients), len(clients) // 2, 5, 0))
        simulation = Simulation(
            seed=0,
            rounds=3,
            cohort=cohort,
            task=engine.task,
            algorithm=algorithm,
            engine=engine,
            training_clients=clients,
            evaluation_clients=clients,
            evaluation_part="train",
            evaluate_every=1,
            flops_per_sample=0,
            client_ids=lambda chosen: [str(client) for client in chosen],
            attack=attack,
            **{name: make() for name, make in parts.items()},
        )
        *_, last = simulate(simulation)
        outcomes.append(last)
    cpu, gpu = outcomes
    assert gpu.row == pytest.approx(cpu.row, abs=1e-10)
    for key, value in cpu.snapshot.state["params"].items():
        torch.testing.assert_close(gpu.snapshot.state["params"][key].cpu(), value, rtol=0, atol=1e-10)
    return cpu.row


DEFENCES = (
    *("norm_bound", "median", "trimmed_mean", "krum", "multi_krum", "bulyan", "geometric_median"),
    *("centered_clipping", "fools_gold", "fl_trust", "sign_majority"),
)


@pytest.mark.parametrize("name", DEFENCES)
def test_defences_come_to_the_same_as_on_the_cpu(name: str) -> None:
    found = []
    for device in ("cpu", "cuda", "cuda"):
        local, algorithm, clients = LOCALS["epochs"], FedAvg(), np.arange(1, len(SIZES))
        algorithm.prepare(len(SIZES), local)
        engine = make_engine(CohortEngine, "mlp", algorithm, local, device=device, lanes=3, compile=False)
        aggregator = AGGREGATORS.get(name)()
        simulation = Simulation(
            seed=0,
            rounds=3,
            cohort=len(clients),
            task=engine.task,
            algorithm=algorithm,
            engine=engine,
            training_clients=clients,
            evaluation_clients=clients,
            evaluation_part="train",
            evaluate_every=1,
            flops_per_sample=0,
            client_ids=lambda chosen: [str(client) for client in chosen],
            aggregator=aggregator,
            trusted=TrustedTraining(engine, 5) if aggregator.trusted_samples else None,
        )
        *_, last = simulate(simulation)
        found.append(last)
    cpu, gpu, again = found
    np.testing.assert_allclose(gpu.jobs["counted"], cpu.jobs["counted"], atol=1e-8)
    for key, value in cpu.snapshot.state["params"].items():
        first, second = (run.snapshot.state["params"][key].cpu() for run in (gpu, again))
        torch.testing.assert_close(first, value, rtol=0, atol=1e-8)
        assert torch.equal(first, second)


@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize("plan", ["together", "beside"])
@pytest.mark.parametrize("model", ["mlp", "leaf_cnn"])
def test_very_many_steps_are_those_of_the_cpu(model: str, plan: str, compile: bool, monkeypatch) -> None:
    """Clients with much more data than others are alone in the end, or beside them; several steps are taken at once."""
    monkeypatch.setattr(beside, "_FAR_MORE", 1)
    monkeypatch.setattr(drawing, "_FEWEST_ON_GPU", 1)  # so that the GPU draws the batches
    local = LocalTraining(epochs=5, batch_size=1, lr=0.02, momentum=0.5)
    reference = make_engine(ReferenceEngine, model, FedAvg(), local, device="cpu")
    broadcast, clients = {"params": reference.initial_params()}, list(range(len(SIZES)))
    expected = train(reference, clients, broadcast, {})
    lanes = 16 if plan == "beside" else 4
    engine = make_engine(CohortEngine, model, FedAvg(), local, device="cuda", lanes=lanes, plan=plan, compile=compile)
    for some in (clients, clients[1:-2], clients):  # in lanes that others have used
        found = train(engine, some, engine.place(broadcast), {})
        for client in some:
            for name, value in expected[client][0]["params"].items():
                torch.testing.assert_close(found[client][0]["params"][name].cpu(), value, rtol=0, atol=1e-9)
    pools = engine._beside._pools  # one client, and four, whose results are put aside when they have finished
    kept = [{lanes.finished is not None for some in pool._free.values() for lanes in some} for pool in pools]
    assert kept == ([{False}, {True}] if plan == "beside" else [])
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
