"""A device in a secure sum: the server learns the sum of a group's vectors, and of no single one anything.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, in the variant
against servers that do not keep to the protocol. A member answers five messages of the server, each once:

1. *advertise*: two fresh public keys, signed with the key of its certificate;
2. *share*: of two secrets, its private key for masks and the seed of its self mask, shares for every other member,
   sealed so that the server cannot read what it passes on;
3. *mask*: its vector plus its self mask, plus or minus a mask that it has agreed on with each other member;
4. *confirm*: its signature under the list of those whose masked vectors have arrived;
5. *unmask*: if enough members have signed the same list, its shares of the self masks of those on the list, and of
   the private keys of those who have left before.

Masks that two members agreed on cancel in the sum. Since there is one list that `threshold` members signed, and no
member signs two, the server never gets shares of both secrets of the same member: with both it could read its vector.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from fedarena.client import masks
from fedarena.client.masks import Authority, Sign, Words
from fedarena.client.secret_sharing import SECRET_BYTES, SHARE_BYTES, Randomness, split_secret
from fedarena.client.secure_limits import LEAST_MEMBERS, MOST_MEMBERS, check_threshold
from fedarena.client.secure_messages import (
    MASK_KEY,
    SEALED_BYTES,
    SELF_MASK,
    SIGNATURE_BYTES,
    Keys,
    Shared,
    decode_all_keys,
    decode_numbers,
    decode_parts,
    encode_numbers,
    encode_revealed,
)
from fedarena.core.errors import SecureSumError

_Answer = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Session:
    """What a secure sum is called, and its rules; a name is never used twice."""

    name: str
    threshold: int  # members without whom nothing is unmasked
    length: int  # words of a vector
    bits: int = 32  # of a word

    @property
    def text(self) -> str:
        """What keys and signatures are bound to."""
        return f"{self.name}\0{self.threshold}\0{self.length}\0{self.bits}"


class Member:
    """One device in one secure sum. Its secrets are in memory only: a device that restarts has left the sum."""

    def __init__(
        self,
        session: Session,
        number: int,
        certificate: bytes,
        sign: Sign,
        authority: Authority,
        randomness: Randomness = os.urandom,
    ):
        self._session, self._number, self._authority = session, number, authority
        self._certificate, self._sign, self._randomness = certificate, sign, randomness
        self._cipher_key, self._mask_key, self._self_mask = (randomness(SECRET_BYTES) for _ in range(3))
        self._keys: dict[int, Keys] = {}  # of all members, once they are known
        self._own_shares: tuple[bytes, bytes] = b"", b""
        self._held: dict[int, tuple[bytes, bytes]] = {}  # shares of others' self masks and private keys, and our own
        self._survivors: list[int] = []
        self._answered: dict[str, tuple[bytes, bytes]] = {}  # by phase: to what, and what

    def advertise(self) -> bytes:
        """Our keys."""
        unsigned = self._own_keys(b"")
        return self._own_keys(self._sign(unsigned.signed_part(self._session.text))).encoded()

    def share(self, all_keys: bytes) -> bytes:
        """Sealed shares of our secrets, for the members with these keys."""
        return self._once("share", "advertise", all_keys, self._share)

    def mask(self, vector: Words, sealed: bytes) -> bytes:
        """Our vector with all masks; those have left who have sealed no shares for us."""
        return self._once("mask", "share", sealed, lambda message: self._mask(vector, message))

    def confirm(self, survivors: bytes) -> bytes:
        """Our signature under the list of those whose masked vectors have arrived."""
        return self._once("confirm", "mask", survivors, self._confirm)

    def unmask(self, signatures: bytes) -> bytes:
        """One share of a secret of every member, if enough of them have signed the same list as we have."""
        return self._once("unmask", "confirm", signatures, self._unmask)

    def _once(self, phase: str, after: str, message: bytes, answer: _Answer) -> bytes:
        """A message may come twice, because an answer was lost; but no phase has two different ones."""
        if phase in self._answered:
            asked, answered = self._answered[phase]
            if asked != message:
                raise SecureSumError(f"The server asks for another answer in the phase {phase!r}, which has one")
            return answered
        if after != "advertise" and after not in self._answered:
            raise SecureSumError(f"The server asks for the phase {phase!r} before {after!r}")
        found = answer(message)
        self._answered[phase] = message, found
        return found

    def _share(self, message: bytes) -> bytes:
        all_keys = decode_all_keys(message)
        keys = {one.number: one for one in all_keys}
        self._check_keys(all_keys, keys)
        secrets = self._self_mask, self._mask_key
        split = [split_secret(one, self._session.threshold, keys, self._randomness) for one in secrets]
        sealed: dict[int, bytes] = {}
        for other, theirs in keys.items():
            both = split[0][other], split[1][other]
            if other == self._number:
                self._own_shares = both
                continue
            key = self._sealing_key(theirs, self._number, other)
            sealed[other] = masks.seal(key, _address(self._number, other) + both[0] + both[1])
        self._keys = keys
        return Shared(masks.commitment(self._self_mask, self._session.text), sealed).encoded()

    def _check_keys(self, all_keys: list[Keys], keys: dict[int, Keys]) -> None:
        members, threshold = len(keys), self._session.threshold
        if members < max(threshold, LEAST_MEMBERS):
            raise SecureSumError(
                f"Only {members} members advertise keys, and a secure sum needs at least "
                f"{max(threshold, LEAST_MEMBERS)}"
            )
        if members > MOST_MEMBERS:
            raise SecureSumError(f"A group has at most {MOST_MEMBERS} members, not {members}")
        check_threshold(threshold, members)
        mine = keys.get(self._number)
        # A signature of the same keys may be another one.
        if mine is None or mine != self._own_keys(mine.signature):
            raise SecureSumError("The server does not pass on the keys that this device advertises")
        names = [self._authority.name_of(one.certificate) for one in all_keys]
        publics = [key for one in all_keys for key in (one.cipher_key, one.mask_key)]
        if len({len(all_keys), members, len(set(names)), len(set(publics)) // 2}) > 1:
            raise SecureSumError("The server lists a member twice, under another number or with another's keys")
        for one in all_keys:
            if not self._authority.has_signed(one.certificate, one.signed_part(self._session.text), one.signature):
                raise SecureSumError(f"The keys of member {one.number} are not signed by the owner of its certificate")

    def _own_keys(self, signature: bytes) -> Keys:
        cipher_key, mask_key = masks.public_key(self._cipher_key), masks.public_key(self._mask_key)
        return Keys(self._number, cipher_key, mask_key, signature, self._certificate)

    def _sealing_key(self, theirs: Keys, sender: int, receiver: int) -> bytes:
        purpose = f"shares from {sender} to {receiver}"
        return masks.agreed_key(self._cipher_key, theirs.cipher_key, self._session.text, purpose)

    def _mask(self, vector: Words, message: bytes) -> bytes:
        session = self._session
        if vector.dtype.kind != "u" or vector.dtype.itemsize * 8 != session.bits or vector.shape != (session.length,):
            raise SecureSumError(f"This sum is of {session.length} words of {session.bits} bits")
        sealed = decode_parts(message, SEALED_BYTES, "The list of sealed shares")
        if strangers := sealed.keys() - self._keys.keys() | (sealed.keys() & {self._number}):
            raise SecureSumError(f"The server passes on shares of {min(strangers)}, who is not another member")
        if len(sealed) + 1 < session.threshold:
            raise SecureSumError(
                f"Only {len(sealed) + 1} members have shared their keys, and a secure sum needs {session.threshold}"
            )
        held = {self._number: self._own_shares}
        for other, content in sealed.items():
            opened = masks.unseal(self._sealing_key(self._keys[other], other, self._number), content)
            if opened is None or opened[:8] != _address(other, self._number):
                raise SecureSumError(f"The shares of member {other} were changed on their way")
            held[other] = opened[8 : 8 + SHARE_BYTES], opened[8 + SHARE_BYTES :]
        masked = vector.copy()
        masks.add_mask(masked, self._self_mask, 1)
        for other in sealed:
            seed = pair_seed(self._mask_key, self._keys[other].mask_key, session, self._number, other)
            masks.add_mask(masked, seed, pair_sign(self._number, other))
        self._held = held
        return masked.astype(masked.dtype.newbyteorder("<"), copy=False).tobytes()

    def _confirm(self, message: bytes) -> bytes:
        survivors = decode_numbers(message, "The list of those who are still there")
        if set(survivors) - self._held.keys() or self._number not in survivors:
            raise SecureSumError("The server's list of those who are still there is not of this sum")
        if len(survivors) < self._session.threshold:
            raise SecureSumError(
                f"Only {len(survivors)} masked vectors have arrived, and nothing is unmasked with fewer than "
                f"{self._session.threshold}"
            )
        self._survivors = survivors
        return self._sign(confirmed_part(self._session, survivors))

    def _unmask(self, message: bytes) -> bytes:
        signatures = decode_parts(message, SIGNATURE_BYTES, "The list of signatures")
        wanted = confirmed_part(self._session, self._survivors)
        for number, signature in signatures.items():
            signer = self._keys.get(number) if number in self._survivors else None
            if signer is None or not self._authority.has_signed(signer.certificate, wanted, signature):
                raise SecureSumError(
                    f"Member {number} has not signed the list of those who are still there that this device has"
                )
        if len(signatures) < self._session.threshold:
            raise SecureSumError(
                f"Only {len(signatures)} members have signed who is still there, and nothing is unmasked with fewer "
                f"than {self._session.threshold}"
            )
        still_there = set(self._survivors)
        shares = {
            number: (SELF_MASK, self_mask) if number in still_there else (MASK_KEY, mask_key)
            for number, (self_mask, mask_key) in sorted(self._held.items())
        }
        return encode_revealed(shares)


def pair_seed(private: bytes, public: bytes, session: Session, one: int, other: int) -> bytes:
    """The seed of the mask that two members agree on."""
    return masks.agreed_key(private, public, session.text, f"mask of {min(one, other)} and {max(one, other)}")


def pair_sign(own: int, other: int) -> int:
    """Of two members, one adds the mask that they agreed on and the other one subtracts it."""
    return 1 if own < other else -1


def confirmed_part(session: Session, survivors: list[int]) -> bytes:
    """What members sign of the list of those who are still there."""
    return b"fedarena survivors\0" + session.text.encode() + b"\0" + encode_numbers(survivors)


def _address(sender: int, receiver: int) -> bytes:
    return sender.to_bytes(4, "little") + receiver.to_bytes(4, "little")
