"""What travels in a secure sum, byte for byte, and how many bytes that is.

Numbers are little-endian; a member of a group is known by a number of 32 bits. Sizes can be had without anybody
encrypting anything, so that a simulation counts the bytes that devices would send.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedarena.client.secret_sharing import SHARE_BYTES
from fedarena.core.errors import SecureSumError

KEY_BYTES = 32  # of X25519
SIGNATURE_BYTES = 64  # of ECDSA with P-256, both numbers as they are
COMMITMENT_BYTES = 32
TAG_BYTES = 16  # with which AES-GCM shows that nothing was changed
SEALED_BYTES = 8 + 2 * SHARE_BYTES + TAG_BYTES  # from whom to whom, and a share of both secrets
# Of a device, as `fedarena deploy invite` makes it; its length varies by a few bytes with the name.
USUAL_CERTIFICATE_BYTES = 470

_NUMBER, _COUNT = struct.Struct("<I"), struct.Struct("<H")
# Of which secret a share is that is revealed.
SELF_MASK, MASK_KEY = 0, 1


@dataclass(frozen=True)
class Keys:
    """What a member advertises: two public keys of this round, signed with the key of its certificate."""

    number: int
    cipher_key: bytes  # with which shares are encrypted for it
    mask_key: bytes  # from which masks are agreed on with it
    signature: bytes
    certificate: bytes  # DER

    def signed_part(self, session: str) -> bytes:
        """What the signature is of."""
        return b"fedarena keys\0" + session.encode() + b"\0" + self._numbers()

    def _numbers(self) -> bytes:
        return _NUMBER.pack(self.number) + self.cipher_key + self.mask_key

    def encoded(self) -> bytes:
        """The message."""
        return self._numbers() + self.signature + _COUNT.pack(len(self.certificate)) + self.certificate


@dataclass(frozen=True)
class Shared:
    """What a member sends of its two secrets: what binds it to its self mask, and sealed shares for every other."""

    commitment: bytes
    sealed: dict[int, bytes]  # by whom they are for

    def encoded(self) -> bytes:
        """The message."""
        return self.commitment + encode_parts(self.sealed)


class Reader:
    """Takes a message apart; one that is too short or too long is refused."""

    def __init__(self, message: bytes, what: str):
        self._message, self._what, self._at = message, what, 0

    def take(self, length: int) -> bytes:
        """The next bytes."""
        piece = self._message[self._at : self._at + length]
        if len(piece) < length:
            raise SecureSumError(f"{self._what} ends too early")
        self._at += length
        return piece

    def number(self) -> int:
        """The next number of 32 bits."""
        found: int = _NUMBER.unpack(self.take(_NUMBER.size))[0]
        return found

    def count(self) -> int:
        """The next number of 16 bits."""
        found: int = _COUNT.unpack(self.take(_COUNT.size))[0]
        return found

    def keys(self) -> Keys:
        """The next member's keys."""
        number, cipher_key, mask_key = self.number(), self.take(KEY_BYTES), self.take(KEY_BYTES)
        return Keys(number, cipher_key, mask_key, self.take(SIGNATURE_BYTES), self.take(self.count()))

    def parts(self, size: int) -> dict[int, bytes]:
        """A part of this size for each of some members, of whom nobody may be named twice."""
        found: dict[int, bytes] = {}
        for _ in range(self.count()):
            number = self.number()
            if number in found:
                raise SecureSumError(f"{self._what} names member {number} twice")
            found[number] = self.take(size)
        return found

    def end(self) -> None:
        """There must be no more."""
        if self._at != len(self._message):
            raise SecureSumError(f"{self._what} has {len(self._message) - self._at} bytes too many")


def decode_keys(message: bytes) -> Keys:
    """The keys that a member advertises."""
    reader = Reader(message, "A message with keys")
    keys = reader.keys()
    reader.end()
    return keys


def encode_all_keys(keys: Iterable[Keys]) -> bytes:
    """The keys of all members, for all of them."""
    each = [one.encoded() for one in keys]
    return _COUNT.pack(len(each)) + b"".join(each)


def decode_all_keys(message: bytes) -> list[Keys]:
    """The inverse."""
    reader = Reader(message, "The list of keys")
    keys = [reader.keys() for _ in range(reader.count())]
    reader.end()
    return keys


def decode_shared(message: bytes) -> Shared:
    """What a member sends of its secrets."""
    reader = Reader(message, "A message with sealed shares")
    shared = Shared(reader.take(COMMITMENT_BYTES), reader.parts(SEALED_BYTES))
    reader.end()
    return shared


def encode_parts(parts: Mapping[int, bytes]) -> bytes:
    """Parts of equal size, by the number of a member."""
    return _COUNT.pack(len(parts)) + b"".join(_NUMBER.pack(number) + part for number, part in parts.items())


def decode_parts(message: bytes, size: int, what: str) -> dict[int, bytes]:
    """The inverse."""
    reader = Reader(message, what)
    parts = reader.parts(size)
    reader.end()
    return parts


def encode_numbers(numbers: Iterable[int]) -> bytes:
    """Numbers of members, in their order."""
    return encode_parts(dict.fromkeys(sorted(numbers), b""))


def decode_numbers(message: bytes, what: str) -> list[int]:
    """The inverse."""
    return list(decode_parts(message, 0, what))


def encode_revealed(shares: Mapping[int, tuple[int, bytes]]) -> bytes:
    """For each of some members, of which of its secrets a share is, and the share."""
    return encode_parts({number: bytes([kind]) + share for number, (kind, share) in shares.items()})


def decode_revealed(message: bytes) -> dict[int, tuple[int, bytes]]:
    """The inverse."""
    parts = decode_parts(message, 1 + SHARE_BYTES, "A message with revealed shares")
    return {number: (part[0], part[1:]) for number, part in parts.items()}


@dataclass(frozen=True)
class Traffic:
    """Bytes that one member of a group of so many sends and gets in a secure sum, beside the masked vector itself."""

    members: int
    certificate_bytes: int = USUAL_CERTIFICATE_BYTES

    @property
    def _keys(self) -> int:
        return _NUMBER.size + 2 * KEY_BYTES + SIGNATURE_BYTES + _COUNT.size + self.certificate_bytes

    def _parts(self, number: int, size: int) -> int:
        return _COUNT.size + number * (_NUMBER.size + size)

    @property
    def keys_up(self) -> int:
        """Before masks can be agreed on: keys and sealed shares."""
        return self._keys + COMMITMENT_BYTES + self._parts(self.members - 1, SEALED_BYTES)

    @property
    def keys_down(self) -> int:
        """Everybody's keys, and the shares that are sealed for this member."""
        return _COUNT.size + self.members * self._keys + self._parts(self.members - 1, SEALED_BYTES)

    @property
    def unmasking_up(self) -> int:
        """Behind the masked vector: a signature, and a share of a secret of every member."""
        return SIGNATURE_BYTES + self._parts(self.members, 1 + SHARE_BYTES)

    @property
    def unmasking_down(self) -> int:
        """Who is still there, and what they have signed."""
        return self._parts(self.members, 0) + self._parts(self.members, SIGNATURE_BYTES)
