from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fedarena.algorithms import FedProx
from fedarena.core.errors import BadInputError
from fedarena.core.options import resolve_part
from fedarena.data.registry import PARTITIONERS
from fedarena.models import MODELS
from fedarena.runs.building import prepare
from fedarena.runs.config import RunConfig, parse_overrides, read_settings, resolve, resolve_settings
from fedarena.runs.merging import merge
from fedarena.runs.observer import Observer
from fedarena.simulate import ClockOptions
from fedarena.train import LocalTraining


def settings(*arguments: str) -> dict[str, Any]:
    return merge({}, parse_overrides(arguments))


def test_every_default_is_written_out_and_read_back() -> None:
    config = resolve({})
    text = config.to_yaml()
    assert resolve(yaml.safe_load(text)) == config
    written = yaml.safe_load(text)
    assert list(written) == list(RunConfig.model_fields)
    assert written["algorithm"] == {"name": "fedavg", "server_lr": 1.0}
    assert written["local"]["weight_decay"] == 0.0
    assert written["federation"]["min_characters"] > 0


@given(
    seed=st.integers(0, 2**63 - 1),
    rounds=st.integers(1, 10**6),
    lr=st.floats(1e-9, 1e9),
    mu=st.floats(1e-30, 1e6),  # what the engine can compute with
    algorithm=st.sampled_from(["fedprox", {"name": "fedprox"}]),
)
def test_a_configuration_survives_its_file(seed: int, rounds: int, lr: float, mu: float, algorithm: Any) -> None:
    config = resolve(
        merge({"algorithm": algorithm}, {"seed": seed, "rounds": rounds, "local.lr": lr, "algorithm.mu": mu})
    )
    assert resolve(yaml.safe_load(config.to_yaml())) == config
    assert config.algorithm["mu"] == mu


@pytest.mark.parametrize("name", ["runs #2", "#2", "12 #2", "own\ndata", "null # not"])
def test_a_text_on_the_command_line_is_all_of_it(name: str) -> None:
    assert settings(f"name={name}") == {"name": name}
    assert settings(f'name="{name}"'.replace("\n", "\\n")) == {"name": name}
    assert (
        settings(f"federation={{name: leaf, folder: '{name}'}}".replace("\n", "\n\n"))["federation"]["folder"] == name
    )


def test_values_on_the_command_line_are_yaml() -> None:
    given = settings("a=1", "b=0.5", "c=true", "d=null", "e=", "f=[1, x]", "g='1'", "h=1.5e+3 ", "i={j: 2}  # nothing")
    assert list(given.values()) == [1, 0.5, True, None, None, [1, "x"], "1", 1500.0, {"j": 2}]


def test_names_are_short_for_named_parts() -> None:
    short = resolve(settings("federation=digits", "algorithm=fedprox"))
    assert short == resolve(settings("federation.name=digits", "algorithm.name=fedprox"))
    assert short.federation["partition"]["name"] == "dirichlet"
    nested = resolve(settings("federation=digits", "federation.partition=shards"))
    assert nested.federation["partition"]["name"] == "shards"
    assert "alpha" not in nested.federation["partition"]


def test_options_and_names_in_any_order() -> None:
    assert settings("algorithm.mu=0.5", "algorithm=fedprox") == settings("algorithm=fedprox", "algorithm.mu=0.5")


def test_another_name_drops_the_former_options() -> None:
    base = {"algorithm": {"name": "fedprox", "mu": 0.5}, "name": "kept"}
    assert merge(base, {"algorithm": "fedavg"})["algorithm"] == {"name": "fedavg"}
    assert merge(base, {"algorithm": "fedprox"})["algorithm"] == {"name": "fedprox", "mu": 0.5}
    assert merge({"algorithm": {"mu": 0.5}}, {"algorithm": "fedprox"})["algorithm"] == {"mu": 0.5, "name": "fedprox"}
    assert merge(base, {"algorithm.name": "fedavg"})["algorithm"] == {"name": "fedavg"}
    assert merge(base, {"algorithm.name": "fedprox"})["algorithm"] == {"name": "fedprox", "mu": 0.5}
    assert merge(base, {"name": "other"}) == {**base, "name": "other"}
    assert base["algorithm"] == {"name": "fedprox", "mu": 0.5}


@pytest.mark.parametrize(
    ("arguments", "merged"),
    [
        (["local.lr=0.1", "local={lr: 0.5, steps: 3}"], {"local": {"lr": 0.5, "steps": 3}}),
        (["local={lr: 0.5, steps: 3}", "local.lr=0.1"], {"local": {"lr": 0.1, "steps": 3}}),
        (["algorithm.name=fedprox", "algorithm=fedavg"], {"algorithm": {"name": "fedavg"}}),
        (["algorithm={name: fedprox, mu: 1}", "algorithm.name=fedavg"], {"algorithm": {"name": "fedavg"}}),
        (["algorithm={name: fedprox, mu: 1}", "algorithm.mu=2"], {"algorithm": {"name": "fedprox", "mu": 2}}),
        (["algorithm={mu: 2}", "algorithm.name=fedprox"], {"algorithm": {"name": "fedprox", "mu": 2}}),
        (["algorithm.mu=2", "algorithm=fedprox"], {"algorithm": {"name": "fedprox", "mu": 2}}),
        (["algorithm.mu=2", "algorithm={name: fedprox, mu: 1}"], {"algorithm": {"name": "fedprox", "mu": 1}}),
    ],
)
def test_on_the_command_line_the_last_one_counts_however_it_is_written(
    arguments: list[str], merged: dict[str, Any]
) -> None:
    assert settings(*arguments) == merged


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"local.lr": 0.1, "local": {"lr": 0.5}}, "local.lr"),
        ({"algorithm": "fedavg", "algorithm.name": "fedprox"}, "algorithm"),
    ],
)
def test_a_file_that_sets_the_same_twice_is_refused(tmp_path: Path, given: dict[str, Any], key: str) -> None:
    (tmp_path / "twice.yaml").write_text(yaml.safe_dump(given))
    with pytest.raises(BadInputError, match=rf"^{key} is set twice, to .* and to .*; leave one of them out"):
        read_settings(tmp_path / "twice.yaml")


def test_in_python_a_key_with_dots_counts_more_than_a_mapping() -> None:
    base = {"local": {"lr": 0.5, "batch_size": 7}}
    assert resolve_settings({**base, "local.lr": 0.1}, {}).local.lr == 0.1
    assert resolve_settings({"local.lr": 0.1, **base}, {}).local.batch_size == 7


def test_another_protocol_brings_its_own_aggregator_to_a_complete_configuration() -> None:
    complete = resolve(settings("protocol=synchronous")).to_dict()
    assert resolve_settings(complete, {"protocol": "asynchronous"}).aggregator["name"] == "mixing"
    assert resolve_settings(complete, {"protocol": "synchronous"}).aggregator == complete["aggregator"]
    both = {"protocol": "asynchronous", "aggregator": "mean"}
    assert resolve_settings(complete, both).aggregator["name"] == "mean"
    chosen = resolve(settings("protocol=synchronous", "aggregator=median")).to_dict()
    assert resolve_settings(chosen, {"protocol": "deadline"}).aggregator["name"] == "median"


def test_an_aggregator_that_was_chosen_stays_with_another_protocol() -> None:
    assert resolve_settings({"aggregator": "mean"}, {"protocol": "asynchronous"}).aggregator["name"] == "mean"
    by_hand = {"protocol": "synchronous", "aggregator": {"name": "mean"}}
    assert resolve_settings(by_hand, {"protocol": "asynchronous"}).aggregator["name"] == "mean"


@pytest.mark.parametrize(
    ("argument", "clients"),
    [
        ("federation.partition.alpha=5.0", 20),
        ("federation.partition=dirichlet", 20),
        ("federation.partition={name: dirichlet, alpha: 5.0}", 20),
        ("federation.partition.clients=7", 7),
        ("federation.partition=iid", resolve_part(PARTITIONERS, "iid", "partition")["clients"]),
    ],
)
def test_a_default_part_keeps_its_other_options_when_one_is_set(argument: str, clients: int) -> None:
    assert resolve(settings("federation=diabetes", argument)).federation["partition"]["clients"] == clients


def test_mappings_are_merged() -> None:
    base = {"local": {"epochs": 5, "batch_size": 4}, "federation": {"name": "digits", "partition": {"clients": 12}}}
    merged = merge(base, {"local": {"lr": 0.01}, "federation.partition": "iid"})
    assert merged["local"] == {"epochs": 5, "batch_size": 4, "lr": 0.01}
    assert merged["federation"]["partition"] == {"clients": 12, "name": "iid"}
    assert base["local"] == {"epochs": 5, "batch_size": 4}


def test_epochs_and_steps_replace_each_other() -> None:
    assert resolve_settings(None, {"local.steps": 5}).local.epochs is None
    assert resolve(merge({"local": {"steps": 3}}, {"local.epochs": 2})).local.steps is None


@pytest.mark.parametrize("name", ["../out", "/tmp/x", "a/b", "", ".hidden", "a\0b", "x" * 101, "a\nb", 5])
def test_names_are_single_folders(name: Any) -> None:
    with pytest.raises(BadInputError, match="name must be 1 to 100 printable characters"):
        resolve({"name": name})


def test_numbers_in_scientific_notation() -> None:
    assert resolve(settings("local.lr=1e-3")).local.lr == 1e-3


def test_steps_replace_epochs() -> None:
    config = resolve(settings("local.steps=7"))
    assert (config.local.steps, config.local.epochs) == (7, None)
    assert resolve(config.to_dict()) == config


def test_without_a_file_it_is_the_quickstart_unless_another_federation_is_named() -> None:
    assert resolve_settings(None, {}).federation["max_characters"] == 20000
    assert resolve_settings(None, {"federation": "digits"}).local.lr == RunConfig().local.lr
    assert resolve_settings(None, {"federation": "chitchat"}).federation["max_characters"] == 20000
    assert resolve_settings({}, {}).federation["max_characters"] is None


def test_own_parts_by_class_and_by_import_path() -> None:
    config = resolve({"algorithm": {"name": FedProx, "mu": 0.5}})
    options = {"mu": 0.5, "partial_work": False, "server_lr": 1.0}
    assert config.algorithm == {"name": "fedarena.algorithms.fedprox:FedProx", **options}
    assert resolve(config.to_dict()) == config
    with pytest.raises(BadInputError, match=r"Cannot import the algorithm 'nowhere:Thing'.*nowhere"):
        resolve({"algorithm": "nowhere:Thing"})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["round=3"], "There is no setting 'round'; did you mean 'rounds'?"),
        (["local.learning_rate=3"], "There is no setting 'local.learning_rate'"),
        (["local.batchsize=3"], "There is no setting 'local.batchsize'; did you mean 'local.batch_size'?"),
        (["rounds=-1"], "rounds: input should be greater than or equal to 1, not -1"),
        (["rounds=many"], "rounds: input should be a valid integer"),
        (["rounds=1.5"], "rounds: input should be a valid integer"),
        (["rounds=true"], "rounds: input should be a valid integer"),
        (["engine.threads=true"], "engine.threads must not be true"),
        (["algorithm.server_lr=.nan"], "algorithm.server_lr: input should be a finite number"),
        (["local=3"], "local must hold settings such as local.epochs, not 3"),
        (["local.lr=0"], "local.lr: input should be greater than 0, not 0"),
        (["local.lr=.nan"], "local.lr: input should be"),
        (["local.epochs=2", "local.steps=3"], "local: give epochs or steps, not both"),
        (["local.epochs=null"], "local: give epochs or steps"),
        (["local.optimizer=adam", "local.momentum=0.9"], "momentum is for the optimizer sgd"),
        (["evaluation.part=tset"], "evaluation.part: input should be 'test', 'validation' or 'train', not 'tset'"),
        (["algorithm=fedprocks"], "There is no algorithm called 'fedprocks'; did you mean 'fedprox'?"),
        (
            ["algorithm=fedavg", "algorithm.mu=1"],
            "algorithm.mu: the algorithm 'fedavg' has no option 'mu'; valid: server_lr",
        ),
        (["algorithm=fedprox", "algorithm.mu=x"], "algorithm.mu: input should be a valid number"),
        (
            ["federation=chichat"],
            "There is no federation called 'chichat' and no folder of that name; did you mean 'chitchat'?",
        ),
        (
            ["federation=digits", "federation.partition=dirichle"],
            "There is no partitioner called 'dirichle'; did you mean 'dirichlet'?",
        ),
        (["model=char_mpl"], "There is no model called 'char_mpl'; did you mean 'char_mlp'?"),
        (["model.hidden=3"], "To set options of the model ('hidden'), name it: model=…"),
        (["model=mlp", "model.hidden=3"], "model.hidden must be a list, such as [3], not 3"),
        (["task=classification", "task.metrics=auc"], "task.metrics must be a list, such as ['auc'], not 'auc'"),
        (["engine=cuda"], "There is no engine called 'cuda'"),
        (["rounds.deep=3", "rounds=2"], "rounds.deep cannot be set, because rounds is 2"),
        (["rounds"], "'rounds' has no value; write rounds=…, without spaces"),
        (["algorithm=[1]"], "algorithm must be a name or a mapping with a name"),
        (["seed=-1"], "seed: input should be greater than or equal to 0"),
        (["seed=2024-02-30"], "seed: input should be a valid integer, not '2024-02-30'"),
        (["seed=!!int abc"], "The setting 'seed', line 1: 'abc' is not a number"),
        (["seed=" + "9" * 5000], "The setting 'seed', line 1: a number has more than 100 characters"),
        (["rounds=" + "9" * 90], "rounds: input should be"),
        (["rounds=" + "x" * 5000], "rounds: input should be a valid integer, not 'xxx"),
        (["algorithm={name: fedavg, name: fedprox}"], "the key 'name' is there already"),
        (["algorithm={1: 2}"], "there is the key 1, but keys must be names"),
        (["local.lr=true"], "local.lr must not be true"),
        (["local.weight_decay=false"], "local.weight_decay must not be false"),
        (["clock.start_hour=true"], "clock.start_hour must not be true"),
        (["algorithm.server_lr=true"], "algorithm.server_lr must not be true"),
        (
            ["federation=digits", "federation.partition.alpha=true"],
            "federation.partition.alpha must not be true",
        ),
        (["fleet=profiles", "fleet.files=a.json", "fleet.copies=[1, true]"], "fleet.copies.1 must not be true"),
        (["local.lr=1e300"], "local.lr is 1e+300, too large to compute with in float32, the engine's precision"),
        (["local.lr=1e-300"], "local.lr is 1e-300, too close to 0 to compute with in float32"),
        (["local.weight_decay=1e39"], "local.weight_decay is 1e+39, too large to compute with in float32"),
        (["algorithm=fedprox", "algorithm.mu=1e300"], "algorithm.mu is 1e+300, too large to compute with in float32"),
        (["algorithm=fetchsgd", "algorithm.rows=" + "9" * 20], "algorithm.rows: input should be less than or equal to"),
        (["algorithm=fetchsgd", "algorithm.top=" + "9" * 20], "but whole numbers are at most 9223372036854775807"),
        (["federation=synthetic", "federation.clients=1000000000000"], "federation.clients: input should be less than"),
        (["fleet=dpgmm", "fleet.base_phones=1000000000000"], "fleet.base_phones: input should be less than"),
        (["weights=''"], "weights: '' cannot be the name of a file or folder"),
        (['weights="a\\0b"'], "weights: 'a\\x00b' cannot be the name of a file or folder"),
        (["weights=~nobody-of-that-name/x.pt"], "weights: '~nobody-of-that-name/x.pt' cannot be the name"),
        (["weights=" + "x" * 300], "cannot be the name of a file or folder"),
        (
            ["federation=store", "federation.path=~nobody-of-that-name"],
            "federation.path: '~nobody-of-that",
        ),
        (["a" + ".a" * 5000 + "=1"], "is nested too deeply"),
        (["name=\udcff"], "is not UTF-8"),
    ],
)
def test_bad_settings_get_a_sentence(arguments: list[str], sentence: str) -> None:
    with pytest.raises(BadInputError) as caught:
        resolve(settings(*arguments))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_the_engine_can_hold_is_taken() -> None:
    assert resolve(settings("local.lr=1e300", "engine.dtype=float64")).local.lr == 1e300
    assert resolve(settings("local.lr=3.4e38", "local.weight_decay=1.2e-38")).local.lr == 3.4e38


def test_truth_values_where_they_belong() -> None:
    config = resolve(settings("evaluation.training_set=true", "algorithm=fedprox", "algorithm.partial_work=true"))
    assert (config.evaluation.training_set, config.algorithm["partial_work"]) == (True, True)


@pytest.mark.parametrize("given", [{1: 2}, {"seed": 10**5000}, {"local": {"lr": 10**5000}}, {"rounds": {"a": [1]}}])
def test_python_gets_sentences_as_well(given: dict[Any, Any]) -> None:
    with pytest.raises(BadInputError) as caught:
        resolve_settings(given, {})
    assert len(str(caught.value)) < 200


def test_sections_are_declared_once() -> None:
    """What trains and what keeps time are the settings themselves."""
    config = resolve(settings("local.lr=0.5", "clock.hours=2", "clock.start_hour=1"))
    assert config.local == LocalTraining(lr=0.5)
    assert config.clock == ClockOptions(start_hour=1.0, hours=2.0)
    assert (config.clock.start_seconds, config.clock.limit_seconds) == (3600.0, 7200.0)
    assert list(config.to_dict()["clock"]) == [field.name for field in fields(ClockOptions)]


def test_missing_options_are_named() -> None:
    with pytest.raises(BadInputError, match=r"federation\.path is missing"):
        resolve(settings("federation=store"))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"rounds: [1", "is not valid YAML"),
        (b"- 1\n- 2", "must hold settings such as"),
        (b"just text", "must hold settings such as"),
        (b"", "must hold settings such as"),
        (b"1: 2", "line 1: there is the key 1, but keys must be names"),
        (b"federation: {true: 2}", "line 1: there is the key true, but keys must be names"),
        (b"matrix: [{1: 2}]", "line 1: there is the key 1, but keys must be names"),
        (b"[" * 5000, "nested too deeply"),
        (b"\xff\xfe\x00", "cannot be read as a text file"),
    ],
)
def test_bad_files_get_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(content)
    with pytest.raises(BadInputError) as caught:
        read_settings(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


def test_registered_names_are_unique() -> None:
    with pytest.raises(ValueError, match="registered twice"):
        MODELS.register("mlp")(lambda spec: None)


def test_a_batch_may_be_larger_than_any_client() -> None:
    config = resolve(settings("federation=digits", "model=logistic_regression", f"local.batch_size={2**62}"))
    assert prepare(config, Observer()).config.engine["lanes"] == 1


def test_a_degree_of_adaptivity_whose_square_is_infinite() -> None:
    with pytest.raises(BadInputError, match=r"algorithm\.tau must be at most 1e\+09, not 1e\+26"):
        prepare(resolve(settings("federation=digits", "algorithm=fedadam", "algorithm.tau=1e26")), Observer())
