"""What somebody said, for tests of own texts."""

from __future__ import annotations

import pandas as pd

from fedarena.data import Federation

SAID = [
    ("ann", "Well, hello there!", "joy", "train"),
    ("bob", "no\nno no", "anger", "train"),
    ("ann", "I see é ✓", "neutral", "train"),
    ("ann", "hello again", "joy", "test"),
    ("cyd", "unheard of words", "anger", "test"),
    ("bob", "hello", "joy", "val"),
]
TABLE = pd.DataFrame(SAID, columns=["speaker", "utterance", "emotion", "part"])


def rows_of_part(federation: Federation, part: str) -> set[tuple[str, tuple[str, ...], str]]:
    """Client, tokens and label of every sample of a part, as names."""
    found = set()
    for client, id in enumerate(federation.client_ids(federation.clients())):
        columns = federation.samples([client], part).columns
        names, labels = federation.task.token_names, federation.task.label_names
        for x, y in zip(columns["x"], columns["y"], strict=True):
            found.add((id, tuple(names[token] for token in x), labels[y]))
    return found
