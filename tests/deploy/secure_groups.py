"""Groups of devices in one process, for tests of secure sums: a certificate authority, members and the server."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedarena.client.masks import Authority, signing_with
from fedarena.client.secure_limits import usual_threshold
from fedarena.client.secure_sum import Member, Session
from fedarena.deploy.unmasking import PHASES, SecureGroup, SecureTotal

Change = Callable[[str, int, bytes], bytes]  # of a message of the server, by phase and member


class SmallAuthority:
    """Issues certificates to devices."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self.issue("authority", self.key)

    def issue(self, name: str, key: Any) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        build = x509.CertificateBuilder().subject_name(_named(name)).issuer_name(_named("authority"))
        build = build.public_key(key.public_key()).serial_number(x509.random_serial_number())
        build = build.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
        return build.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


@lru_cache
def authority() -> SmallAuthority:
    return SmallAuthority()


@lru_cache
def credentials(number: int) -> tuple[bytes, Any]:
    """A device's certificate and key."""
    key = ec.generate_private_key(ec.SECP256R1())
    return authority().issue(f"device {number}", key), key


def make_member(session: Session, number: int) -> Member:
    certificate, key = credentials(number)
    return Member(session, number, certificate, signing_with(key), Authority(authority().certificate))


def make_group(session: Session, numbers: list[int]) -> tuple[SecureGroup, dict[int, Member]]:
    group = SecureGroup(session, numbers, Authority(authority().certificate))
    return group, {number: make_member(session, number) for number in numbers}


def answer(member: Member, phase: str, message: bytes, vector: Any) -> bytes:
    if phase == "advertise":
        return member.advertise()
    return member.mask(vector, message) if phase == "mask" else getattr(member, phase)(message)


def summed(
    vectors: Mapping[int, Any],
    leaves: Mapping[int, str] | None = None,
    threshold: int | None = None,
    change: Change = lambda phase, member, message: message,
) -> SecureTotal:
    """The secure sum of vectors, of whose members some leave before they answer in a phase."""
    numbers = list(vectors)
    first = next(iter(vectors.values()))
    session = Session("test", threshold or usual_threshold(len(numbers)), len(first), first.dtype.itemsize * 8)
    group, members = make_group(session, numbers)
    incoming = dict.fromkeys(numbers, b"")
    for phase in PHASES:
        for number, message in incoming.items():
            left = (leaves or {}).get(number)
            if left is None or PHASES.index(left) > PHASES.index(phase):
                sent = answer(members[number], phase, change(phase, number, message), vectors[number])
                group.take(number, sent)
        if phase != PHASES[-1]:
            incoming = group.close()
    return group.total()


def random_vectors(numbers: list[int], length: int, dtype: Any = np.uint32, seed: int = 0) -> dict[int, Any]:
    random = np.random.default_rng(seed)
    return {n: random.integers(0, np.iinfo(dtype).max, length, dtype=dtype, endpoint=True) for n in numbers}
