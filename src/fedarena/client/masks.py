"""The cryptography of a secure sum, all of it from the package cryptography, which only runs with such sums need.

Keys are agreed on with X25519 and derived with HKDF-SHA256; shares are sealed with AES-256-GCM; masks are the key
stream of AES-256-CTR. Every key is derived for one purpose in one session and used once, so that counters may begin at
zero. Signatures are ECDSA with P-256 and SHA-256, by the keys of devices' certificates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedarena.client.secure_messages import SIGNATURE_BYTES
from fedarena.core.errors import SecureSumError

Words = npt.NDArray[Any]  # of 32 or 64 bits, without a sign: sums are modulo 2^32 or 2^64
Sign = Callable[[bytes], bytes]
_WORDS_AT_ONCE = 1 << 18  # of a mask, so that there is never a whole one beside the vector
_NONCE = bytes(12)


def public_key(private: bytes) -> bytes:
    """What others may know of a key."""
    public: bytes = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return public


def agreed_key(private: bytes, public: bytes, session: str, purpose: str) -> bytes:
    """256 bits that only these two know, the same for both of them."""
    try:
        secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise SecureSumError("A member advertises a key with which nothing can be agreed on") from None
    info = f"fedarena {purpose}\0{session}".encode()
    key: bytes = HKDF(hashes.SHA256(), 32, None, info).derive(secret)
    return key


def seal(key: bytes, content: bytes) -> bytes:
    """Content that only those can read, and nobody can change, who have the key; which seals nothing else."""
    sealed: bytes = AESGCM(key).encrypt(_NONCE, content, None)
    return sealed


def unseal(key: bytes, sealed: bytes) -> bytes | None:
    """The content; None if it was changed, or sealed with another key."""
    try:
        content: bytes = AESGCM(key).decrypt(_NONCE, sealed, None)
    except InvalidTag:
        return None
    return content


def add_mask(vector: Words, seed: bytes, sign: int) -> None:
    """Adds the mask of a seed to a vector, or subtracts it, in place."""
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    little_endian = vector.dtype.newbyteorder("<")
    change = np.add if sign > 0 else np.subtract
    for begin in range(0, len(vector), _WORDS_AT_ONCE):
        piece = vector[begin : begin + _WORDS_AT_ONCE]
        change(piece, np.frombuffer(stream.update(bytes(piece.nbytes)), little_endian), out=piece)


def commitment(secret: bytes, session: str) -> bytes:
    """What binds a member to its secret of 256 bits without telling it."""
    return hashlib.sha256(b"fedarena commitment\0" + session.encode() + b"\0" + secret).digest()


def signing_with(key: Any) -> Sign:
    """Signs with the private key of a certificate."""
    if not (isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)):
        raise SecureSumError("A secure sum is signed with a key of the curve P-256, and this device's is another")

    def sign(message: bytes) -> bytes:
        numbers: tuple[int, int] = decode_dss_signature(key.sign(message, ec.ECDSA(hashes.SHA256())))
        return b"".join(number.to_bytes(SIGNATURE_BYTES // 2, "big") for number in numbers)

    return sign


def read_certificate(pem: bytes) -> bytes:
    """A certificate as it travels, from the text in which files have it."""
    encoded: bytes = x509.load_pem_x509_certificate(pem).public_bytes(serialization.Encoding.DER)
    return encoded


def read_key(pem: bytes) -> Any:
    """The private key in a file."""
    return serialization.load_pem_private_key(pem, None)


class Authority:
    """Knows whose certificates count: those that the authority of the federation has issued."""

    def __init__(self, certificate: bytes):
        self._own: Any = x509.load_der_x509_certificate(certificate)

    def name_of(self, certificate: bytes) -> str:
        """To whom a certificate was issued; refused unless it is by this authority."""
        return str(self._read(certificate).subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)

    def has_signed(self, certificate: bytes, message: bytes, signature: bytes) -> bool:
        """Whether the owner of a certificate has signed a message."""
        numbers = (int.from_bytes(half, "big") for half in (signature[:32], signature[32:]))
        try:
            key: Any = self._read(certificate).public_key()
            key.verify(encode_dss_signature(*numbers), message, ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, ValueError):
            return False
        return True

    def _read(self, certificate: bytes) -> Any:
        try:
            read: Any = x509.load_der_x509_certificate(certificate)
            read.verify_directly_issued_by(self._own)
        except (ValueError, TypeError, InvalidSignature):
            raise SecureSumError("A member's certificate is not from this federation's authority") from None
        return read
