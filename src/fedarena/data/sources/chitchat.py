"""Messages of 1,315 people from the Chit-Chat Challenge of Brigham Young University; a client is a person.

The data is in the package chitchat-dataset (MIT licence). The task is to predict the next character.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from typing import Annotated

from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.splits import Seed, Split, SplitKind, TrainFraction, ValidationFraction
from fedarena.data.text.characters import Sequences


@FEDERATIONS.register("chitchat")
@cached_source(version=2)
def chitchat(
    build: StoreBuild,
    *,
    sequence_length: Annotated[int, Field(ge=1, le=100_000)] = 64,
    min_characters: Annotated[int, Field(ge=2)] = 200,
    max_characters: Annotated[int, Field(ge=2)] | None = None,
    split: SplitKind = "by_client",
    train_fraction: TrainFraction = 0.8,
    validation_fraction: ValidationFraction = 0.0,
    split_seed: Seed = 0,
) -> None:
    """Every person's messages in the order they were sent, one per line, cut into sequences of characters.

    A sample has ``sequence_length + 1`` tokens; the last character of a sample is the first of the next one,
    so that every character but the first is predicted exactly once. People with fewer than `min_characters`
    are left out, and of the others the first `max_characters` are used. With ``split="within_client"`` the
    earlier text of a person is for training and the later text for testing; no character is in both.
    """
    build.progress(0.0, "reading messages")
    texts = {sender: "\n".join(messages) for sender, messages in messages_by_sender().items()}
    kept = sorted(sender for sender, text in texts.items() if len(text) >= min_characters)
    if not kept:
        longest = max(map(len, texts.values()))
        raise BadInputError(f"Nobody wrote {min_characters} characters; the longest text has {longest}.")
    division = Split(split, train_fraction, validation_fraction, split_seed)
    maker = Sequences(sequence_length)
    with build.writer(task=maker.task, columns=maker.columns) as writer:
        for client, (sender, group) in enumerate(zip(kept, division.groups(len(kept)), strict=True)):
            tokens = maker.alphabet.encode(texts[sender][:max_characters])
            parts = maker.divide(tokens, division, client, group)
            writer.add_client(sender, group=group, **parts)
            if client % 100 == 0:
                build.progress(0.5 + 0.5 * client / len(kept), "writing sequences")


def messages_by_sender() -> dict[str, list[str]]:
    """What each person wrote, in the order it was sent."""
    import chitchat_dataset  # reads nothing by itself, but not every user of federations needs it

    sent: dict[str, list[tuple[datetime.datetime, str]]] = defaultdict(list)
    for conversation in chitchat_dataset.Dataset().values():
        for turn in conversation["messages"]:
            for message in turn:
                time = datetime.datetime.fromisoformat(message["timestamp"])
                sent[message["sender"]].append((time, message["text"]))
    # Sorting by time alone keeps the order of messages that were sent in the same second.
    return {
        sender: [text for _, text in sorted(messages, key=lambda message: message[0])]
        for sender, messages in sent.items()
    }
