"""Labels are counted as if one looked at every single one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from store_oracle import PlainFederation, plain_federations

from fedarena.data.store import labels
from fedarena.data.store.labels import count_labels


@pytest.mark.parametrize("block_values", [1, 7, labels.BLOCK_VALUES])
@settings(max_examples=40, deadline=None)
@given(plain=plain_federations())
def test_counts_equal_those_of_one_client_at_a_time(block_values: int, plain: PlainFederation) -> None:
    column = plain.task.label_column
    rows = [client.rows("train", column) for client in plain.clients]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labels, "BLOCK_VALUES", block_values)
        found = count_labels(plain.task, np.concatenate(rows), np.cumsum([0, *map(len, rows)]))
    for client, counts in zip(plain.clients, found, strict=True):
        client.group = "train"
        alone = PlainFederation(plain.task, plain.columns, plain.attributes, [client])
        assert counts.tolist() == alone.label_counts()
