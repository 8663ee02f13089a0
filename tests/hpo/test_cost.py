"""The system model against sums by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedarena.core.errors import BadInputError
from fedarena.hpo.cost import GOOD_NETWORK, RoundWork, SystemModel, harmonic_number, system_model
from fedarena.hpo.rate_study import rate_study
from fedarena.hpo.space import Space
from fedarena.hpo.tables import Table

WORK = RoundWork(clients=5, download_bytes=1_500_000, upload_bytes=500_000, steps=4)


def test_a_round_of_the_paper() -> None:
    slowest = 1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5
    assert SystemModel().round_s(WORK) == pytest.approx(2.0 + 2.0 + slowest)
    system = SystemModel(client_s=0.5, step_s=0.1, server_s=3.0)
    assert system.round_s(WORK) == pytest.approx(2.0 + 2.0 + 0.9 * slowest + 3.0)


def test_a_server_that_sends_to_one_after_the_other() -> None:
    assert SystemModel(server_bytes_per_second=750_000).round_s(WORK) == pytest.approx(10.0 + 2.0 + harmonic_number(5))
    assert SystemModel(server_bytes_per_second=1e9).round_s(WORK) == SystemModel().round_s(WORK)


def test_the_slowest_of_many_is_what_draws_say() -> None:
    drawn = np.random.default_rng(0).exponential(size=(20_000, 40)).max(1).mean()
    assert harmonic_number(40) == pytest.approx(drawn, rel=0.01)
    assert harmonic_number(1000) == pytest.approx(sum(1 / n for n in range(1, 1001)), rel=1e-12)


def test_connecting_takes_longer_with_every_client_and_never_overflows() -> None:
    clients = np.array([1, 200, 65_534, 65_535, 65_536, 70_000, 480_189, 10**9])
    seconds = SystemModel().connecting_s(clients)
    assert np.isfinite(seconds).all()
    assert (np.diff(seconds) >= 0).all()
    assert seconds[2:5] == pytest.approx([np.exp(-1), 1.0, 2.0])


def test_many_courses_at_once() -> None:
    work = RoundWork(np.array([1, 5]), np.array([750_000, 1_500_000]), np.array([250_000, 500_000]), np.array([1, 4]))
    assert SystemModel().round_s(work)[1] == SystemModel().round_s(WORK)
    assert SystemModel().round_s(work)[0] == pytest.approx(1.0 + 1.0 + 1.0)
    assert GOOD_NETWORK.round_s(WORK) < SystemModel().round_s(WORK) - 3.9


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"client_sec": 1.0}, "no parameter 'client_sec'; did you mean 'client_s'"),
        ({"client_s": -1.0}, "client_s of a system must be 0 or more, not -1"),
        ({"upload_bytes_per_second": 0}, "upload_bytes_per_second of a system must be above 0"),
        ({"server_s": "x"}, "server_s of a system must be a number, not 'x'"),
        ({"client_s": float("nan")}, "must be a number"),
        (3, "described by parameters"),
    ],
)
def test_systems_that_cannot_be(given: object, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        system_model(given)


def test_sample_rates_against_rounds() -> None:
    """Two sample rates: a small one with short rounds, and a large one that is better round by round."""
    values = np.array(
        [[[[3.0, 2.0, 1.5]], [[2.5, 1.0, 0.5]]], [[[9.0, 8.0, np.inf]], [[9.0, 8.0, 7.0]]]], dtype=np.float32
    )
    work = {"clients": np.array([[1, 10]] * 2), "steps": np.ones((2, 2), dtype=np.int64)}
    work |= {"download_bytes": np.full((2, 2), 75), "upload_bytes": np.full((2, 2), 25)}
    space = Space.parse({"local.lr": [0.1, 1.0]})
    table = Table(
        *("known", space, {"local.lr": (0.1, 1.0)}, (0.1, 1.0), (1, 2, 4), ("validation_loss",), values),
        *(np.ones((2, 2), dtype=np.bool_), work, (0,)),
    )
    waiting = SystemModel(upload_bytes_per_second=1e9, download_bytes_per_second=1e9)  # H_10 is nearly 3
    sending = SystemModel(upload_bytes_per_second=1, download_bytes_per_second=1, client_s=0.0)
    study = rate_study(table, {"waiting": waiting, "sending": sending}, points=9)
    seconds = study.seconds["waiting"]
    expected = []
    for rate, (round_s, losses) in enumerate(((1.0, values[0, 0, 0]), (harmonic_number(10), values[0, 1, 0]))):
        rounds = np.floor(seconds / round_s + 1e-6)
        expected.append([losses[sum(rounds_ >= (1, 2, 4)) - 1] if rounds_ else np.inf for rounds_ in rounds])
        assert study.rates[rate] == (0.1, 1.0)[rate]
    assert study.best["waiting"] == pytest.approx(np.array(expected))
    assert study.best["waiting"][0, 0] < study.best["waiting"][1, 0]
    assert (study.best["sending"][1] <= study.best["sending"][0]).all()
    assert study.median["sending"][0, -1] == np.inf
