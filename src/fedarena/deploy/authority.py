"""The authority of a deployment: it signs the certificates by which server and devices know each other.

Nobody else is trusted: a device believes only this authority about the server, and the server only this authority about
devices. Keys are on the curve P-256. What a device needs to take part is one file, its invitation.
"""

from __future__ import annotations

import datetime
import io
import ipaddress
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedarena.client.identity import GRPC
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import sync_folder

AUTHORITY_YEARS, CERTIFICATE_DAYS = 10, 365
_CLOCKS_APART = datetime.timedelta(days=1)  # a device whose clock is that much behind is still believed
_KEY, _CERTIFICATE = "authority/ca.key", "authority/ca.crt"
INVITATION_FORMAT = "fedarena invitation"


@dataclass(frozen=True)
class Issued:
    """A key and the certificate for it."""

    key: bytes  # PEM
    certificate: bytes  # PEM
    serial: str  # of the certificate, in hexadecimal
    not_after: datetime.datetime


class Authority:
    """Issues certificates. Its key lies in the deploy folder, readable by its owner alone."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate):
        self._key, self._certificate = key, certificate

    @classmethod
    def create(cls, folder: Path) -> Authority:
        """A new one, kept in the folder."""
        key, name, now = ec.generate_private_key(ec.SECP256R1()), _name("FedArena authority"), _now()
        builder = _builder(name, name, key, now, datetime.timedelta(days=365 * AUTHORITY_YEARS))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        authority = cls(key, builder.sign(key, hashes.SHA256()))
        (folder / _KEY).parent.mkdir(mode=0o700, exist_ok=True)
        write_secret(folder / _KEY, _pem(key))
        write_secret(folder / _CERTIFICATE, authority.certificate)
        return authority

    @classmethod
    def open(cls, folder: Path) -> Authority:
        """The one of a deploy folder."""
        try:
            key = serialization.load_pem_private_key((folder / _KEY).read_bytes(), None)
            certificate = x509.load_pem_x509_certificate((folder / _CERTIFICATE).read_bytes())
        except FileNotFoundError:
            raise BadInputError(
                f"{folder} is no deploy folder; make one with: fedarena deploy init --at {folder} --address HOST:PORT"
            ) from None
        except ValueError as error:
            raise DamagedFileError(f"{folder / 'authority'} is damaged: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise DamagedFileError(f"{folder / _KEY} is damaged: it holds a key of another kind")
        if key.public_key() != certificate.public_key():
            raise DamagedFileError(
                f"{folder / _KEY} is not the key of {folder / _CERTIFICATE}: no device could trust what it signs; "
                "put back the two files as they were"
            )
        return cls(key, certificate)

    @property
    def certificate(self) -> bytes:
        """Its own, which both sides trust."""
        pem: bytes = self._certificate.public_bytes(serialization.Encoding.PEM)
        return pem

    @property
    def not_after(self) -> datetime.datetime:
        """Until when it is good for anything."""
        until: datetime.datetime = self._certificate.not_valid_after_utc
        return until

    def has_issued(self, key: bytes, certificate: bytes) -> bool:
        """Whether a certificate is of this authority, and the key is that of the certificate (both PEM)."""
        try:
            private = serialization.load_pem_private_key(key, None)
            issued = x509.load_pem_x509_certificate(certificate)
            issued.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return bool(private.public_key() == issued.public_key())

    def issue_server(self, hosts: list[str], days: float = CERTIFICATE_DAYS) -> Issued:
        """For the server, which devices reach under these names and addresses."""
        return self._issue("server", [_host(host) for host in hosts], ExtendedKeyUsageOID.SERVER_AUTH, days)

    def issue_client(self, name: str, days: float = CERTIFICATE_DAYS) -> Issued:
        """For a device of this name."""
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(f"fedarena:client:{name}")]
        return self._issue(name, names, ExtendedKeyUsageOID.CLIENT_AUTH, days)

    def _issue(self, name: str, others: list[x509.GeneralName], usage: x509.ObjectIdentifier, days: float) -> Issued:
        key, now = ec.generate_private_key(ec.SECP256R1()), _now()
        until = min(datetime.timedelta(days=days), self.not_after - now)
        builder = _builder(_name(name), self._certificate.subject, key, now, until)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName(others), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = builder.add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        return Issued(_pem(key), pem, f"{certificate.serial_number:x}", certificate.not_valid_after_utc)


def invitation(authority: Authority, issued: Issued, name: str, address: str, transport: str = GRPC) -> bytes:
    """The one file that a device needs: its key and certificate, the authority's certificate, and where the server is.

    Whoever has it can take part under this name.
    """
    about = {"format": INVITATION_FORMAT, "version": 1, "name": name, "address": address, "transport": transport}
    contents = {
        "invitation.json": json.dumps(about, indent=2).encode(),
        "client.key": issued.key,
        "client.crt": issued.certificate,
        "ca.crt": authority.certificate,
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in contents.items():
            entry = zipfile.ZipInfo(file, date_time=(1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o600 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


def write_secret(path: Path, content: bytes) -> None:
    """Writes a new file that its owner alone can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def expiry(certificate: bytes) -> datetime.datetime:
    """Until when a certificate is valid."""
    until: datetime.datetime = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    return until


def serial_of(certificate: bytes) -> str:
    """The number by which a certificate is told from others."""
    return f"{x509.load_pem_x509_certificate(certificate).serial_number:x}"


def holder_of(certificate: bytes) -> tuple[str, str]:
    """Whose certificate it is (DER), and its number."""
    found = x509.load_der_x509_certificate(certificate)
    names = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else "", f"{found.serial_number:x}"


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    until: datetime.timedelta,
) -> x509.CertificateBuilder:
    since = min(now - _CLOCKS_APART, now + until - _CLOCKS_APART)
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(since).not_valid_after(now + until)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return builder.add_extension(identifier, critical=False)


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    pem: bytes = key.private_bytes(encoding, form, serialization.NoEncryption())
    return pem
