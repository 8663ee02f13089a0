"""What tells the samples that a table was made of from others, wherever their files lie."""

from __future__ import annotations

import hashlib

import numpy as np

from fedarena.data import Federation

_CLIENTS_AT_ONCE = 256


def samples_fingerprint(federation: Federation) -> str:
    """A hash of all samples by client and part.

    The fingerprint of a federation also knows the folder that its files came from and the version of their format, so
    it differs between two machines that have the same samples.
    """
    digest = hashlib.blake2b(digest_size=16)
    clients = federation.clients("all")
    for first in range(0, len(clients), _CLIENTS_AT_ONCE):
        some = clients[first : first + _CLIENTS_AT_ONCE]
        for part in ("train", "validation", "test"):
            found = federation.samples(some, part)
            digest.update(np.asarray(found.offsets, dtype=np.int64).tobytes())
            for name, values in sorted(found.columns.items()):
                digest.update(f"{name} {values.dtype.str} {values.shape}".encode())
                digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
