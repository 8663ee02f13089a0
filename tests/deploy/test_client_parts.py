"""Small parts of the client: the user's samples and their checks, conditions, what cannot be deployed, exit codes."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from devices_without_network import small_experiment
from hypothesis import given
from hypothesis import settings as tried

from fedarena.client import conditions
from fedarena.client.__main__ import _parser, main
from fedarena.client.building import build, column_form, put_constants
from fedarena.client.conditions import Conditions, not_charging, not_on_wifi
from fedarena.client.loading import load_samples
from fedarena.client.samples import OwnSamples, RawSamples
from fedarena.core.errors import BadInputError
from fedarena.deploy.settings import device_settings
from fedarena.models import DataSpec, InputSpec

PICTURES = DataSpec("classification", 3, (2, 2))
FORM = {"x": ("float32", (2, 2)), "y": ("int64", ())}
X, Y = np.zeros((4, 2, 2), dtype=np.float32), np.array([0, 1, 2, 1])


def samples_in(value, form=FORM, spec=PICTURES) -> OwnSamples:
    return OwnSamples.given(RawSamples(value, "load"), form, spec)


@pytest.mark.parametrize(
    "value",
    [
        (X, Y),
        [X.tolist(), Y.tolist()],
        {"x": torch.from_numpy(X), "y": torch.from_numpy(Y).int()},
        {"train": (X.astype(np.float64), Y.astype(np.uint8)), "test": {"x": X[:1], "y": Y[:1]}},
    ],
    ids=["pair", "lists", "tensors", "parts"],
)
def test_forms_of_samples(value):
    samples = samples_in(value)
    found = samples.samples(np.array([7]), "train").columns
    assert {name: (column.dtype.name, column.shape) for name, column in found.items()} == {
        "x": ("float32", (4, 2, 2)),
        "y": ("int64", (4,)),
    }
    assert found["y"].tolist() == Y.tolist()
    tests = 1 if isinstance(value, dict) and "train" in value else 0
    assert samples.counts(np.array([7]), "test").tolist() == [tests]
    assert len(samples.samples(np.array([7]), "all").columns["y"]) == 4 + tests


TEXT = DataSpec("next_token", 5, (3,))
CODES = DataSpec("rating", 1, (), inputs=(InputSpec("item", (), 9),), value_range=(1.0, 5.0))
RATINGS = {"item": ("int64", ()), "y": ("float32", ())}


@pytest.mark.parametrize(
    ("value", "form", "spec", "sentence"),
    [
        (None, FORM, PICTURES, "must be a pair .x, y. or a dictionary of columns, not 'NoneType'"),
        ({}, FORM, PICTURES, "must be a pair"),
        ((X, Y, Y), FORM, PICTURES, "must be a pair"),
        ((X[:0], Y[:0]), FORM, PICTURES, "load gives no training sample"),
        ((X, Y[:2]), FORM, PICTURES, "as many entries in every column, but x has 4, y has 2"),
        ({"x": X}, FORM, PICTURES, "must have the columns x, y, not 'x'"),
        ({"x": X, "z": Y}, FORM, PICTURES, "must have the columns x, y, not 'x, z'"),
        ({"train": (X, Y), "dev": (X, Y)}, FORM, PICTURES, "gives 'dev', but the parts are train, validation and test"),
        ((X.reshape(4, 4), Y), FORM, PICTURES, r"x must have the shape \[samples, 2, 2\], not \[4, 4\]"),
        ((X.astype(np.uint8), Y), FORM, PICTURES, "x must hold numbers of the type float32, not uint8"),
        ((X, Y.astype(np.float32)), FORM, PICTURES, "y must hold numbers of the type int64, not float32"),
        ((X + np.inf, Y), FORM, PICTURES, "x holds numbers that are infinite or undefined"),
        ((X, Y + 1), FORM, PICTURES, "y must hold whole numbers from 0 to 2, not from 1 to 3"),
        ({"train": (X, Y), "test": (X, Y - 1)}, FORM, PICTURES, "the test samples: y must hold whole numbers from 0"),
        ((["a"] * 4, Y), FORM, PICTURES, "x must be an array of numbers"),
        (([[1], [1, 2]], [0, 0]), FORM, PICTURES, "x is not an array"),
        ({"tokens": [[0, 1, 2, 5]]}, {"tokens": ("int32", (4,))}, TEXT, "tokens must hold whole numbers from 0 to 4"),
        ({"tokens": [[0, 1, 2, 2**40]]}, {"tokens": ("int32", (4,))}, TEXT, "numbers from -2147483648 to 2147483647"),
        ({"item": [9], "y": [1.0]}, RATINGS, CODES, "item must hold whole numbers from 0 to 8, not from 9 to 9"),
        ({"item": [8], "y": [6.0]}, RATINGS, CODES, "y must be from 1 to 5, not from 6 to 6"),
    ],
)
def test_samples_that_do_not_fit_have_a_sentence(value, form, spec, sentence):
    with pytest.raises(BadInputError, match=sentence):
        samples_in(value, form, spec)


def test_the_users_function(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("NUMBER = 5\n")
    (tmp_path / "mydata.py").write_text(
        "from beside import NUMBER\ndef load(): return NUMBER\ndef broken(): return 1 / 0\nnothing = 3\n"
    )
    (tmp_path / "wrong.py").write_text("import nothing_of_this_name\n")
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    assert load_samples("mydata.py:load") == 5
    assert load_samples(f"{tmp_path}/mydata.py:load") == 5
    assert load_samples("os:getcwd") == str(tmp_path)
    for place, sentence in {
        "mydata.py": "should read mydata.py:load",
        "other.py:load": "there is no file other.py",
        "mydata.py:other": "has no function other",
        "mydata.py:nothing": "has no function nothing",
        "mydata.py:broken": r"ZeroDivisionError: division by zero .*mydata.py, line 3",
        "wrong.py:load": "cannot be imported: ModuleNotFoundError.*wrong.py, line 1",
        "nowhere_at_all:load": "cannot be imported",
    }.items():
        with pytest.raises(BadInputError, match=sentence):
            load_samples(place)


def supply(system, **files: str) -> None:
    folder = system / "class" / "power_supply" / "BAT0"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"type": "Battery", **files}.items():
        (folder / name).write_text(text)


def test_charging(tmp_path, monkeypatch):
    monkeypatch.setattr(conditions, "_is_phone", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not_charging(tmp_path) is None  # a computer without a battery
    for status, reason in {"Charging": None, "Full": None, "Not charging": None, "Discharging": "on battery"}.items():
        supply(tmp_path, status=status)
        assert not_charging(tmp_path) == reason
    supply(tmp_path, status="Unknown")
    assert not_charging(tmp_path) == "it is not known whether it charges"


def program(folder, name: str, output: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\necho '{output}'\n")
    (folder / name).chmod(0o755)


def test_wifi(tmp_path, monkeypatch):
    routes, nets = tmp_path / "route", tmp_path / "class" / "net"
    head = "Iface\tDestination\tGateway\n"
    for interface, files, reason in [
        ("wlp3s0", ["wireless"], None),
        ("wlan0", [], None),
        ("eth0", ["type"], None),
        ("rmnet_data1", ["type"], "not on Wi-Fi"),
        ("wwan0", ["type"], "not on Wi-Fi"),
        ("tun0", [], "it is not known whether it is on Wi-Fi"),
    ]:
        routes.write_text(f"{head}{interface}\t0000A8C0\t0\n{interface}\t00000000\t0100A8C0\n")
        (nets / interface).mkdir(parents=True)
        for name in files:
            (nets / interface / name).write_text("1")
        assert not_on_wifi(tmp_path, routes) == reason
    routes.write_text(head)
    assert not_on_wifi(tmp_path, routes) == "there is no network"
    monkeypatch.setenv("ANDROID_ROOT", "/system")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert not_on_wifi(tmp_path, routes) == "it is not known whether it is on Wi-Fi: install Termux:API"
    program(tmp_path, "termux-wifi-connectioninfo", '{"supplicant_state": "COMPLETED"}')
    assert not_on_wifi(tmp_path, routes) is None
    program(tmp_path, "termux-wifi-connectioninfo", '{"supplicant_state": "DISCONNECTED"}')
    assert not_on_wifi(tmp_path, routes) == "not on Wi-Fi"
    program(tmp_path, "dumpsys", "mWakefulness=Awake")
    assert conditions.in_use() == "in use"
    program(tmp_path, "dumpsys", "mWakefulness=Dozing")
    assert conditions.in_use() is None


def test_idle(monkeypatch):
    monkeypatch.delenv("ANDROID_ROOT", raising=False)
    for load, reason in ((0.0, None), (1000.0, "busy with other things")):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert Conditions(idle=True).why_not() == reason
    assert Conditions().why_not() is None


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"training": "iid"}, "training=iid mixes the samples of clients.*choose training=natural"),
        ({"attack": "sign_flip"}, "attack=sign_flip cannot be deployed: attackers are made up.*leave attack out"),
        (
            {"policy": {"name": "fts", "judged_on": "train"}},
            "policy=fts cannot be deployed: policies decide in simulations only",
        ),
        ({"privacy": {"name": "dp_sgd", "noise_multiplier": 1.0}}, "privacy=dp_sgd needs its noise.*choose gaussian"),
        ({"privacy": {"name": "privunit", "job_epsilon": 1.0}}, "privacy=privunit needs SciPy, which devices cannot"),
        ({"selector": "power_of_choice"}, "asks for losses on training samples.*choose selector.losses=latest"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_devices_cannot_do_is_refused_at_the_server(settings, sentence):
    experiment = small_experiment(**settings)
    with pytest.raises(BadInputError, match=sentence):
        device_settings(experiment)


def test_a_selector_that_takes_the_latest_losses_is_deployed():
    device_settings(small_experiment(selector={"name": "power_of_choice", "losses": "latest"}))


def test_settings_that_make_no_sense_have_a_sentence():
    settings = json.loads(json.dumps(device_settings(small_experiment())))
    data = OwnSamples({"train": {"x": np.zeros((2, 1, 8, 8), dtype=np.float32), "y": np.zeros(2, dtype=np.int64)}})
    parts = build(settings, data)
    with pytest.raises(BadInputError, match="What came does not fit the model: 'a' is in one of them alone"):
        put_constants(parts.task, {"a": torch.zeros(1)}, "What came")
    if not torch.backends.mps.is_available():
        with pytest.raises(BadInputError, match=r"engine.device is mps, but torch finds no such GPU here"):
            build(settings, data, device="mps")
    changes = [
        ({"local": {"lr": 1, "speed": 2}}, "The server's settings cannot be used here: .*speed"),
        ({"model": None}, "The server's settings cannot be used here"),
        ({"data": {}}, "The server's settings cannot be used here"),
        ({"algorithm": {"name": "fedavgg"}}, "no algorithm called 'fedavgg'; did you mean"),
        ({"transforms": [{"name": "os:system"}]}, "uses 'os:system', which is not a part of FedArena"),
        ({"task": settings["task"] | {"metrics": ["os:system"]}}, "uses 'os:system'"),
        ({"algorithm": {"name": "odd-name :x"}}, "uses 'odd-name :x'"),
        ({"model": {"name": "huggingface", "path": "/home"}}, "model=huggingface needs a library and a folder"),
        ({"model": {"name": "lstm", "vectors": "/home/alice/secrets"}}, "model.vectors names a file"),
    ]
    for change, sentence in changes:
        with pytest.raises(BadInputError, match=sentence):
            build(settings | change, data)
    with pytest.raises(BadInputError, match="The server's settings cannot be used here"):
        build({}, data)


def places(value, at=()):
    """All places in nested settings."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield (*at, key)
        yield from places(one, (*at, key))


SETTINGS = None  # made once
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@given(st.data())
@tried(max_examples=25)
def test_whatever_settings_say_there_is_a_sentence(data):
    global SETTINGS
    if SETTINGS is None:
        SETTINGS = json.loads(json.dumps(device_settings(small_experiment(transforms=["top_k"]))))
    changed = json.loads(json.dumps(SETTINGS))
    *outer, last = data.draw(st.sampled_from(list(places(SETTINGS))))
    inner = changed
    for key in outer:
        inner = inner[key]
    inner[last] = data.draw(ANYTHING)
    samples = {"train": {"x": np.zeros((2, 1, 8, 8), dtype=np.float32), "y": np.zeros(2, dtype=np.int64)}}
    with contextlib.suppress(BadInputError):
        build(changed, OwnSamples(samples))
        column_form(changed)


def test_bad_input_ends_with_code_2(tmp_path, capsys):
    assert main([str(tmp_path / "alice.zip"), "--data", "mydata.py:load"]) == 2
    assert capsys.readouterr().err == f"Error: There is no invitation {tmp_path}/alice.zip\n"
    with pytest.raises(SystemExit) as ended:
        main(["alice.zip"])
    assert ended.value.code == 2


EXAMPLES = Path(__file__).parents[2] / "examples" / "deploy"


def test_the_example_of_a_function(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    shutil.copy(EXAMPLES / "mydata.py", tmp_path)
    lines = [",".join([str(label / 10)] * 64 + [str(label)]) for label in (1, 2, 3, 4, 5)]
    (tmp_path / "samples.csv").write_text("\n".join(lines))
    raw = RawSamples(load_samples(f"{tmp_path}/mydata.py:load"), "mydata.py:load")
    assert raw.numbers() == {"train": 4, "validation": 0, "test": 1}
    digits = DataSpec("classification", 10, (1, 8, 8))
    samples = OwnSamples.given(raw, {"x": ("float32", (1, 8, 8)), "y": ("int64", ())}, digits)
    assert samples.samples(np.array([0]), "train").columns["y"].tolist() == [2, 3, 4, 5]


def test_the_examples_start_the_client_as_it_wants_to_be_started():
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str
    unit.read_string((EXAMPLES / "fedarena-client.service").read_text())
    script = (EXAMPLES / "termux.sh").read_text()
    subprocess.run(["bash", "-n", EXAMPLES / "termux.sh"], check=True)
    started = script[script.index("-m fedarena.client") :].replace("\\\n", " ")
    for line in (unit["Service"]["ExecStart"], started):
        words = shlex.split(line.partition("-m fedarena.client")[2])
        assert _parser().parse_args(words).data
