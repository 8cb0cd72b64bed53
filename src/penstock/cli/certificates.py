"""Makes the certificates by which dispatcher, workers and clients authenticate each other.

The authority signs two certificates, and its key is not stored. So a third certificate cannot be
made, and a set is renewed as a whole.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError
from penstock.service.host.security import write_token

_LOCAL = ("localhost", "127.0.0.1", "::1")


class _Pair(NamedTuple):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_certificates(folder: str, hosts: Sequence[str] = (), days: int = 365) -> None:
    """Writes a set of certificates and a token into a folder.

    The folder is then copied to every machine of the service.

    Args:
        folder: Made if it does not exist; must not contain a set yet.
        hosts: The names and addresses of machines that run a dispatcher or a worker; `*.name` is
            every host of a domain. `localhost` is always added.
        days: How many days the set is valid.
    """
    if days < 1:
        raise InvalidArgumentError(f"make_certificates: days must be at least 1, got {days}")
    names = [_parse_host(host) for host in dict.fromkeys((*_LOCAL, *hosts))]
    folder = _make_folder(folder)
    authority = _make_authority(days)
    server = _sign_certificate(
        authority, "penstock server", ExtendedKeyUsageOID.SERVER_AUTH, hosts=names, days=days
    )
    client = _sign_certificate(
        authority, "penstock client", ExtendedKeyUsageOID.CLIENT_AUTH, hosts=[], days=days
    )
    _write(folder, "ca.pem", _certificate_bytes(authority.certificate))
    for role, pair in (("server", server), ("client", client)):
        _write(folder, f"{role}.pem", _certificate_bytes(pair.certificate))
        _write(folder, f"{role}-key.pem", _key_bytes(pair.key))
    write_token(os.path.join(folder, "token"))


def read_end(path: str) -> datetime.datetime:
    """When the certificate in a file ends."""
    with open(path, "rb") as file:
        return x509.load_pem_x509_certificate(file.read()).not_valid_after_utc


def _parse_host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(host.encode("idna").decode() if host.isascii() is False else host)
    except (ValueError, UnicodeError):
        raise InvalidArgumentError(
            f"make_certificates: {host!r} is not the name or address of a host"
        ) from None


def _make_folder(folder: str) -> str:
    folder = os.path.abspath(os.path.expanduser(folder))
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise FailedPreconditionError(
            f"make_certificates: the folder {folder!r} cannot be made ({error.strerror})"
        ) from None
    if os.path.exists(os.path.join(folder, "ca.pem")):
        raise AlreadyExistsError(
            f"make_certificates: {folder!r} has certificates already; name another folder, or "
            "remove them if no service uses them any more"
        )
    return folder


def _make_authority(days: int) -> _Pair:
    key, name = ec.generate_private_key(ec.SECP256R1()), _common_name("penstock authority")
    builder = _start_certificate(name, name, key, days)
    builder = builder.add_extension(x509.BasicConstraints(True, 0), critical=True)
    return _Pair(builder.sign(key, hashes.SHA256()), key)


def _sign_certificate(
    authority: _Pair,
    name: str,
    usage: x509.ObjectIdentifier,
    *,
    hosts: list[x509.GeneralName],
    days: int,
) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _start_certificate(_common_name(name), authority.certificate.subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return _Pair(builder.sign(authority.key, hashes.SHA256()), key)


def _start_certificate(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    # Valid from yesterday on, because the clocks of machines differ.
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate_bytes(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(folder: str, name: str, content: bytes) -> None:
    """Writes a private file. Only the keys must be private, but no other user needs the rest."""
    path = os.path.join(folder, name)
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(content)
