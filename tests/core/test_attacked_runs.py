"""Runs with corrupted clients as a user has them: what is told and recorded, resumed, refused; backdoors that work."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small_runs import StopAfter, config, content, interrupt
from typer.testing import CliRunner

import fedarena
from fedarena.cli import main
from fedarena.core.errors import BadInputError
from fedarena.data import ColumnSpec, Federation, FederationWriter, SourceSpec, TaskSpec
from fedarena.runs.building import GivenParts, prepare
from fedarena.runs.observer import Observer
from fedarena.runs.run import Run, resume_run, start_run
from fedarena.transforms import ATTACKS, Attack

BACKDOOR = {"name": "backdoor", "share": 0.3, "size": 2, "from_round": 3, "scale": 2.0}
QUICK = {"algorithm": "fedavg", "rounds": 6, "evaluation.every": 2}


# --- the same bits ----------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "settings",
    [
        {"attack": BACKDOOR, "algorithm": "ditto"},
        {"attack": {"name": "free_rider", "share": 0.4, "sends": "previous"}, "transforms": [{"name": "top_k"}]},
        {
            "attack": {"name": "min_max", "share": 0.4},
            "algorithm": "fedavg",
            "fleet": "uniform",
            "protocol": {"name": "buffered", "buffer_size": 3},
        },
        {"attack": {"name": "gaussian", "share": 0.3}, "algorithm": "scaffold", "transforms": [{"name": "clip"}]},
    ],
    ids=["backdoor", "free rider", "min-max", "gaussian"],
)
def test_a_run_under_attack_that_is_interrupted_ends_the_same(tmp_path: Path, settings) -> None:
    settings = {"rounds": 10, "evaluation.every": 4, "engine": {"lanes": 4}, **settings}
    start_run(config(**settings), tmp_path / "uninterrupted")
    with pytest.raises(KeyboardInterrupt):
        start_run(config(**settings), tmp_path, StopAfter(5, interrupt))
    resume_run(tmp_path / "small")
    assert content(tmp_path / "small") == content(tmp_path / "uninterrupted" / "small")


def test_more_rounds_end_as_if_they_had_been_there_from_the_start(tmp_path: Path) -> None:
    settings = {"attack": BACKDOOR, "algorithm": "fedavg", "evaluation.every": 4}
    start_run(config(**settings, rounds=9), tmp_path / "at once")
    start_run(config(**settings, rounds=6), tmp_path)  # whose last round is evaluated, and is not in the longer run
    resume_run(tmp_path / "small", rounds=9)
    names = ("rounds.parquet", "jobs.parquet", "clients.parquet")
    one, other = (tmp_path / folder / "small" for folder in ("at once", ""))
    assert all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


# --- what is told -----------------------------------------------------------------------------------------------------


def test_a_run_says_who_is_corrupted_what_they_do_and_what_they_see(tmp_path: Path) -> None:
    command = ["run", "federation=digits", "federation.partition.clients=20", "cohort=5", "rounds=4", "name=attacked"]
    command += ["attack=backdoor", "attack.share=0.3", "attack.from_round=2", "evaluation.every=2"]
    result = CliRunner().invoke(main, [*command, "--runs", str(tmp_path)])
    assert result.exit_code == 0, result.output
    told = " ".join(result.output.split())
    assert "Attack: From round 2 on, 6 of 20 clients are corrupted; they put a patch of 3 in the bottom right" in told
    assert "they see only their own data and updates" in told
    assert "attack success 0." in told
    run = fedarena.load(tmp_path / "attacked")
    described = run.summary["attack"]
    assert described["corrupted_clients"] == 6
    assert described["clients"] == 20
    assert described["they_see"] == "only their own data and updates"
    rounds, jobs = run.rounds.to_pylist(), run.jobs.to_pylist()
    assert described["success"] == rounds[-1]["attack_success"]
    assert described["corrupted_updates"] == sum(row["corrupted"] or 0 for row in rounds)
    assert [row["attack_success"] is not None for row in rounds] == [True, False, True, False, True]
    assert not any(job["corrupted"] for job in jobs if job["round"] < 2)
    assert len({job["client"] for job in jobs if job["corrupted"]}) <= 6
    environment = json.loads((tmp_path / "attacked" / "environment.json").read_text())
    assert environment["attack"] == {key: described[key] for key in environment["attack"]}
    assert "6 of 20 clients are corrupted" in (tmp_path / "attacked" / "log.txt").read_text()


def test_every_attack_says_what_it_does_and_sees() -> None:
    for name in ATTACKS.names():
        if name == "none":
            continue
        experiment = prepare(config(**QUICK, attack={"name": name, "share": 0.5}), Observer())
        attack = experiment.simulation.attack
        assert attack.deed()[0].islower()
        assert type(attack).__name__ not in attack.deed()  # it has words of its own
        assert attack.sight().startswith(("only ", "the "))
        assert type(attack).__doc__


def test_nobody_attacks_without_an_attack(tmp_path: Path) -> None:
    run = start_run(config(**QUICK), tmp_path)
    assert "attack" not in run.summary
    assert run.rounds["corrupted"].null_count == len(run.rounds)
    assert run.rounds["attack_success"].null_count == len(run.rounds)


def test_a_share_that_is_nobody_is_told() -> None:
    def warnings(**attack):
        return " ".join(prepare(config(**QUICK, attack={"name": "sign_flip", **attack}), Observer()).warnings)

    assert "attack.share=0.02 of 20 clients is nobody, so nobody attacks; from 0.025 on" in warnings(share=0.02)
    assert "nobody" not in warnings(share=0.0)  # which is what it says
    assert "nobody" not in warnings(share=0.03)
    assert "attack.from_round=7 is after the last round, 6: nobody attacks" in warnings(share=0.1, from_round=7)


# --- refused, with nothing written ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["attack=sign_flip", "attack.share=1"], "attack.share must be at least 0 and below 1, not 1"),
        (["attack=sign_flip", "attack.share=-0.5"], "attack.share must be at least 0 and below 1"),
        (["attack=sign_flip", "attack.from_round=0"], "attack.from_round must be at least 1, not 0"),
        (["attack=label_flip", "attack.to=class", "attack.target=10"], "attack.target must be a class from 0 to 9"),
        (["attack=backdoor", "attack.size=20"], "attack.size is 20, but a picture here has 8 x 8 numbers"),
        (
            ["attack=backdoor", "federation=diabetes"],
            "The attack backdoor needs pictures, features or texts with labels",
        ),
        (["attack=backdoor", "attack.value=2", "federation=shapes"], "attack.value must be from 0 to 1, as pixels are"),
        (["attack=label_flip", "federation=chitchat"], "The attack label_flip needs samples with labels"),
        (["attack=sign_flip", "algorithm=local_only"], "The attack SignFlip does not fit LocalOnly"),
        (["attack=sign_flip", "training=centralized"], "training=centralized has no clients who could be corrupted"),
        (["attack.share=0.2"], "To set options of attack ('share'), name it: attack="),
        (["attack=backdoor", "attack.target=ten"], "attack.target is 'ten', which is no label of this federation"),
        (["attack=sign_flop"], "There is no attack called 'sign_flop'; did you mean 'sign_flip'?"),
        (["attack=backdoor", "attack.trigger=3"], "the attack 'backdoor' has no option 'trigger'"),
    ],
)
def test_bad_input(tmp_path: Path, settings: list[str], sentence: str) -> None:
    settings = settings if any(s.startswith("federation") for s in settings) else ["federation=digits", *settings]
    result = CliRunner().invoke(main, ["run", *settings, "rounds=1", "--runs", str(tmp_path / "runs")])
    assert result.exit_code == 2, result.output
    assert sentence in " ".join(result.output.split())
    assert not (tmp_path / "runs").exists()


class WithoutMeasure(Attack):
    """Has a trigger, and nothing that tells whether it works."""

    def trigger(self, samples):
        return {}


def test_a_trigger_needs_a_metric() -> None:
    with pytest.raises(BadInputError, match="WithoutMeasure has a trigger, so it needs a method success"):
        prepare(config(**QUICK, attack=WithoutMeasure), Observer())


def test_a_fork_cannot_corrupt_others(tmp_path: Path) -> None:
    with Run.create(config(**QUICK, attack=BACKDOOR), tmp_path) as run:
        run.advance(2)
        with pytest.raises(BadInputError, match="cannot change the seed: who is corrupted follows from it"):
            run.fork({"seed": 5}, name="other")
        assert run.fork({"local.lr": 0.01}, name="same").advance(1).round == 3


# --- backdoors that work ----------------------------------------------------------------------------------------------


def success(tmp_path: Path, name: str, **settings) -> tuple[float, float]:
    run = start_run(config(**{"algorithm": "fedavg", **settings}, name=name), tmp_path)
    last = run.rounds.to_pylist()[-1]
    return last["attack_success"], last[run.summary["primary_metric"]]


@pytest.mark.slow
def test_model_replacement_opens_a_backdoor_and_clipping_halves_it(tmp_path: Path) -> None:
    common = {"rounds": 12, "cohort": 10, "evaluation.every": 12, "local": {"epochs": 2}}
    attack = {"name": "backdoor", "share": 0.1, "size": 2, "target": 3}
    quiet, _ = success(tmp_path, "without", **common, attack=attack | {"share": 0.0})
    scaled, _ = success(tmp_path, "scaled", **common, attack=attack | {"scale": None})
    clipped, accuracy = success(
        tmp_path, "clipped", **common, attack=attack | {"scale": None}, transforms=[{"name": "clip", "bound": 0.5}]
    )
    assert quiet < 0.2
    assert scaled > 0.9
    assert clipped < 0.7
    assert accuracy > 0.6


def test_any_number_of_labels_and_one_of_two(tmp_path: Path) -> None:
    tags = {"name": "shapes_tags", "clients": 12, "samples_per_client": 30}
    common = {"rounds": 8, "cohort": 6, "evaluation.every": 8, "local": {"epochs": 3}}
    attack = {"name": "backdoor", "size": 3, "target": 1}
    for federation, task in ((tags, {}), ({"name": "shapes", "clients": 12, "classes": 2}, {"task": "binary"})):
        found = [
            success(
                tmp_path,
                f"{federation['name']} {share}",
                **common,
                **task,
                federation=federation,
                attack=attack | {"share": share},
            )[0]
            for share in (0.0, 0.5)
        ]
        assert found[1] > found[0] + 0.2, federation["name"]


def write_texts(path: Path, kind: str) -> Federation:
    """Texts in which what comes next, or which kind it is, is known; the last token never occurs in them."""
    generator, is_next = np.random.default_rng(0), kind == "next_token"
    words = {"label_names": tuple("-abcdefg")} if is_next else {"tokens": 8, "token_names": tuple("-abcdefg")}
    columns = {"tokens" if is_next else "x": ColumnSpec(dtype="int32", shape=(9,))}
    with FederationWriter(
        path,
        name="texts",
        task=TaskSpec(kind=kind, classes=8 if is_next else 2, padding=0, **words),
        columns=columns | ({} if is_next else {"y": ColumnSpec(dtype="int64", shape=())}),
        source=SourceSpec(name="texts", version=1, options={}),
    ) as writer:
        for client in range(6):
            begin = generator.integers(5, size=(12, 1))
            texts = (1 + (begin + np.arange(9)) % 5).astype(np.int32)
            if is_next:
                samples = {"tokens": texts}
            else:
                y = generator.integers(2, size=12)
                samples = {"x": np.where(y[:, None] > 0, 1 + texts % 2, 3 + texts % 3).astype(np.int32), "y": y}
            writer.add_client(f"c{client}", train=samples, test=samples)
    return Federation.open(path)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("kind", "model"), [("next_token", "char_mlp"), ("classification", "bag_of_words")])
def test_a_token_opens_a_backdoor(tmp_path: Path, kind: str, model: str) -> None:
    federation = write_texts(tmp_path / "texts", kind)
    successes = []
    target = {"target": "b"} if kind == "next_token" else {"target": 1}
    for share in (0.0, 0.5):
        settings = {
            "federation": {"name": "store", "path": str(federation.path)},
            "model": model,
            "algorithm": "fedavg",
            "rounds": 15,
            "cohort": 6,
            "local": {"epochs": 6, "lr": 0.5, "batch_size": 4},
            "evaluation.every": 15,
            "attack": {"name": "backdoor", "share": share, "token": "g", "poisoned_share": 0.5, **target},
        }
        run = start_run(config(**settings, name=f"share {share}"), tmp_path, None, GivenParts(federation=federation))
        last = run.rounds.to_pylist()[-1]
        assert last["accuracy"] > 0.6
        successes.append(last["attack_success"])
    assert successes[1] > 0.8
    assert successes[1] > successes[0] + 0.3
