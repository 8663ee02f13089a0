"""The stand-in for FLAIR, divided anew: the same users and pictures, in other parts."""

from __future__ import annotations

import numpy as np
import pytest

import fedarena
from fedarena.core.errors import BadInputError
from fedarena.data.store.schema import PARTS

USERS = np.arange(60)
SMALL = {"users": len(USERS), "side": 8}


def pictures(federation: fedarena.data.Federation, user: int) -> np.ndarray:
    """All of a user, part by part."""
    return np.concatenate([federation.samples(np.array([user]), part).columns["x"] for part in PARTS])


def test_everybody_trains_and_is_tested_on_the_same_pictures() -> None:
    published = fedarena.federations.flair_like(**SMALL)
    within = fedarena.federations.flair_like(**SMALL, split="within_client", train_fraction=0.6)
    by_client = fedarena.federations.flair_like(**SMALL, split="by_client", train_fraction=0.5)
    totals = sum(published.counts(USERS, part) for part in PARTS)
    for other in (within, by_client):
        np.testing.assert_array_equal(sum(other.counts(USERS, part) for part in PARTS), totals)
        for user in (0, 7, int(totals.argmax())):
            np.testing.assert_array_equal(pictures(other, user), pictures(published, user))
    several = totals > 1
    assert (within.counts(USERS, "test")[several] > 0).all()
    assert (within.counts(USERS, "train") > 0).all()
    assert within.clients("train").tolist() == USERS.tolist()
    assert len(by_client.clients("train")) == len(by_client.clients("test")) == 30


def test_a_fraction_needs_another_split() -> None:
    with pytest.raises(BadInputError, match=r"federation\.train_fraction is 0\.6, but federation\.split=published"):
        fedarena.federations.flair_like(**SMALL, train_fraction=0.6)
