"""The server's side of a secure sum: it passes messages on, adds up masked vectors, and takes the masks off the sum.

See `fedarena.client.secure_sum` for what members do. A group knows no sockets and no clock: whoever drives it gives it
the messages that came, and closes a phase when everybody has answered or nobody waits any longer. What it does is a
function of these messages and of when phases were closed, so a server that was killed can be told them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedarena.client import masks
from fedarena.client.masks import Authority, Words
from fedarena.client.secret_sharing import holder_weights, join_shares
from fedarena.client.secure_limits import LEAST_MEMBERS, MOST_MEMBERS, check_threshold
from fedarena.client.secure_messages import (
    MASK_KEY,
    SELF_MASK,
    SIGNATURE_BYTES,
    Keys,
    Shared,
    decode_keys,
    decode_revealed,
    decode_shared,
    encode_all_keys,
    encode_numbers,
    encode_parts,
)
from fedarena.client.secure_sum import Session, confirmed_part, pair_seed, pair_sign
from fedarena.core.errors import SecureSumError
from fedarena.core.words import counted

PHASES = ("advertise", "share", "mask", "confirm", "unmask")


@dataclass(frozen=True)
class SecureTotal:
    """What a group's vectors come to, modulo 2^bits, and whose they are."""

    words: Words
    members: list[int]


class SecureGroup:
    """One secure sum. `take` has the messages of the present phase, `close` ends it and says what goes to whom."""

    def __init__(self, session: Session, members: Sequence[int], authority: Authority):
        if not LEAST_MEMBERS <= len(members) <= MOST_MEMBERS:
            raise SecureSumError(
                f"A group of a secure sum has from {LEAST_MEMBERS} to {MOST_MEMBERS} members, not {len(members)}"
            )
        check_threshold(session.threshold, len(members))
        self.session, self._authority = session, authority
        self.phase = PHASES[0]
        self.expected = set(members)  # of whom an answer may come in the present phase
        self._keys: dict[int, Keys] = {}
        self._shared: dict[int, Shared] = {}
        self._arrived: list[int] = []  # whose masked vectors are in the sum
        self._signatures: dict[int, bytes] = {}
        self._revealed: dict[int, dict[int, tuple[int, bytes]]] = {}  # by holder: shares of members' secrets
        self._survivors: list[int] = []
        self._total = np.zeros(session.length, dtype=np.dtype(f"u{session.bits // 8}"))

    @property
    def answered(self) -> set[int]:
        """Who has answered in the present phase."""
        of_phase = (self._keys, self._shared, self._arrived, self._signatures, self._revealed)
        return set(of_phase[PHASES.index(self.phase)])

    def take(self, member: int, message: bytes) -> None:
        """A member's answer in the present phase; one that is not what it must be is refused, and changes nothing."""
        if member not in self.expected:
            raise SecureSumError(f"Nobody waits for member {member} in the phase {self.phase!r}")
        if member in self.answered:
            return  # the receipt was lost
        getattr(self, f"_take_{self.phase}")(member, message)

    def close(self) -> dict[int, bytes]:
        """Ends the phase: what goes to each of those who are still there. Too few of them end the sum."""
        there = sorted(self.answered)
        least = max(self.session.threshold, LEAST_MEMBERS) if self.phase == "advertise" else self.session.threshold
        if len(there) < least:
            raise SecureSumError(
                f"Only {counted(len(there), 'member')} of the secure sum {self.session.name!r} answered in the phase "
                f"{self.phase!r}, and it takes {least}; nothing is learned of this group"
            )
        number = PHASES.index(self.phase)
        outgoing: dict[int, bytes] = getattr(self, f"_after_{self.phase}")(there)
        self.phase, self.expected = PHASES[number + 1], set(there)
        return outgoing

    def total(self) -> SecureTotal:
        """The sum, when enough members have revealed their shares."""
        if self.phase != "unmask":
            raise SecureSumError(f"The secure sum is still in the phase {self.phase!r}")
        holders = sorted(self._revealed)
        if len(holders) < self.session.threshold:
            raise SecureSumError(
                f"Only {counted(len(holders), 'member')} of the secure sum {self.session.name!r} revealed shares, and "
                f"it takes {self.session.threshold}; nothing is learned of this group"
            )
        secrets = self._secrets(holders)
        total = self._total.copy()
        for member in self._survivors:
            masks.add_mask(total, secrets[member], -1)
        for gone in sorted(self._shared.keys() - set(self._survivors)):
            # Those who are still there have added masks that nobody took away.
            for member in self._survivors:
                seed = pair_seed(secrets[gone], self._keys[member].mask_key, self.session, gone, member)
                masks.add_mask(total, seed, -pair_sign(member, gone))
        return SecureTotal(total, list(self._survivors))

    def _take_advertise(self, member: int, message: bytes) -> None:
        keys = decode_keys(message)
        if keys.number != member:
            raise SecureSumError(f"Member {member} advertises keys of member {keys.number}")
        if not self._authority.has_signed(keys.certificate, keys.signed_part(self.session.text), keys.signature):
            raise SecureSumError(f"The keys of member {member} are not signed by the owner of its certificate")
        self._keys[member] = keys

    def _after_advertise(self, there: list[int]) -> dict[int, bytes]:
        return dict.fromkeys(there, encode_all_keys(self._keys[member] for member in there))

    def _take_share(self, member: int, message: bytes) -> None:
        shared = decode_shared(message)
        if shared.sealed.keys() != self._keys.keys() - {member}:
            raise SecureSumError(f"Member {member} has not sealed a share for every other member")
        self._shared[member] = shared

    def _after_share(self, there: list[int]) -> dict[int, bytes]:
        return {
            member: encode_parts({other: self._shared[other].sealed[member] for other in there if other != member})
            for member in there
        }

    def _take_mask(self, member: int, message: bytes) -> None:
        words = np.frombuffer(message, self._total.dtype.newbyteorder("<")) if self._fits(message) else None
        if words is None:
            raise SecureSumError(
                f"Member {member} sends {len(message)} bytes instead of {counted(self.session.length, 'word')} of "
                f"{self.session.bits} bits"
            )
        self._total += words
        self._arrived.append(member)

    def _fits(self, message: bytes) -> bool:
        return len(message) == self.session.length * self.session.bits // 8

    def _after_mask(self, there: list[int]) -> dict[int, bytes]:
        self._survivors = there
        return dict.fromkeys(there, encode_numbers(there))

    def _take_confirm(self, member: int, message: bytes) -> None:
        wanted = confirmed_part(self.session, self._survivors)
        right = len(message) == SIGNATURE_BYTES
        if not right or not self._authority.has_signed(self._keys[member].certificate, wanted, message):
            raise SecureSumError(f"Member {member} has not signed the list of those who are still there")
        self._signatures[member] = message

    def _after_confirm(self, there: list[int]) -> dict[int, bytes]:
        return dict.fromkeys(there, encode_parts({member: self._signatures[member] for member in there}))

    def _take_unmask(self, member: int, message: bytes) -> None:
        revealed = decode_revealed(message)
        kinds = {number: SELF_MASK if number in self._survivors else MASK_KEY for number in self._shared}
        if {number: kind for number, (kind, _) in revealed.items()} != kinds:
            raise SecureSumError(f"Member {member} reveals other shares than were asked for")
        self._revealed[member] = revealed

    def _secrets(self, holders: list[int]) -> dict[int, bytes]:
        """Of every member, the secret that it takes; who reveals a wrong share is left out if there are others."""
        threshold = self.session.threshold
        for liar in (None, *holders):
            honest = [holder for holder in holders if holder != liar]
            if len(honest) < threshold:
                break
            # Were the liar among those who are left out, nobody would have noticed.
            secrets = self._joined(honest[:threshold])
            if secrets is not None:
                return secrets
        raise SecureSumError(
            f"Shares that members of the secure sum {self.session.name!r} revealed do not fit together; nothing is "
            "learned of this group"
        )

    def _joined(self, holders: list[int]) -> dict[int, bytes] | None:
        weights = holder_weights(holders)
        secrets: dict[int, bytes] = {}
        for member in self._shared:
            secret = join_shares({holder: self._revealed[holder][member][1] for holder in holders}, weights)
            if secret is None or not self._is_secret_of(member, secret):
                return None
            secrets[member] = secret
        return secrets

    def _is_secret_of(self, member: int, secret: bytes) -> bool:
        """Members have committed themselves to their self masks, and their public keys to the private ones."""
        if member in self._survivors:
            return masks.commitment(secret, self.session.text) == self._shared[member].commitment
        return masks.public_key(secret) == self._keys[member].mask_key
