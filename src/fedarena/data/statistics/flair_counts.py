"""How many users and photos FLAIR has (Song et al., 2022), beside what is in a store of it."""

from __future__ import annotations

import numpy as np

from fedarena.data.flair.published import compare
from fedarena.data.store.federation import Federation
from fedarena.data.store.schema import GROUPS

# Options of the federation with which all published users are there, in their groups.
_EVERYBODY = {"fraction": 1.0, "minimum_samples": 1, "split": "published"}


def compared_with_flair(federation: Federation) -> str | None:
    """Whether a federation has the users and photos that were published, in words; None if it is not FLAIR.

    Photos count that its users have, also those that `max_samples` leaves out. Where photos were dealt out at random,
    only those that are there can be counted.
    """
    source = federation.source
    if source.name not in ("flair", "flair_iid"):
        return None
    chosen = {name: source.options.get(name, wanted) for name, wanted in _EVERYBODY.items()}
    if chosen != _EVERYBODY:
        other = ", ".join(f"{name}={chosen[name]}" for name, wanted in _EVERYBODY.items() if chosen[name] != wanted)
        return f"nothing, since with {other} these are not the published users"
    clients = {group: federation.clients(group) for group in GROUPS}
    if source.name == "flair_iid":
        images = {group: int(federation.counts(clients[group]).sum()) for group in GROUPS}
        limit = source.options.get("max_samples")
        note = "" if limit is None else f" (at most {limit} of a user for training)"
        return compare(None, images, note=note)
    images = {group: int(np.sum(federation.attributes(clients[group])["photos"])) for group in GROUPS}
    return compare({group: len(clients[group]) for group in GROUPS}, images)
