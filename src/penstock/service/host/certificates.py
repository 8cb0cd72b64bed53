"""Certificates: a set with which a dispatcher, its workers and its clients know each other by TLS.

The authority signs two certificates and is forgotten: nobody can make a third one, and a set is
renewed as a whole.
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


def make_certificates(folder: str, hosts: Sequence[str] = (), days: int = 365) -> list[str]:
    """Writes a set into a folder, to be copied to every machine of the service; gives its files.

    Args:
        folder: It is made if it does not exist, and must not hold a set already.
        hosts: The names and addresses of machines that run a dispatcher or a worker; `*.name` is
            every host of a domain. This machine's own `localhost` is always among them.
        days: For how long the set is valid.
    """
    if days < 1:
        raise InvalidArgumentError(f"make_certificates: days must be at least 1, got {days}")
    names = [_alternative(host) for host in dict.fromkeys((*_LOCAL, *hosts))]
    folder = _empty_folder(folder)
    authority = _authority(days)
    server = _signed(authority, "penstock server", ExtendedKeyUsageOID.SERVER_AUTH, names, days)
    client = _signed(authority, "penstock client", ExtendedKeyUsageOID.CLIENT_AUTH, [], days)
    written = [_write(folder, "ca.pem", _text(authority.certificate))]
    for role, pair in (("server", server), ("client", client)):
        written.append(_write(folder, f"{role}.pem", _text(pair.certificate)))
        written.append(_write(folder, f"{role}-key.pem", _secret(pair.key)))
    token = os.path.join(folder, "token")
    write_token(token)
    return [*written, token]


def _alternative(host: str) -> x509.GeneralName:
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


def _empty_folder(folder: str) -> str:
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


def _authority(days: int) -> _Pair:
    key, name = ec.generate_private_key(ec.SECP256R1()), _named("penstock authority")
    builder = _begun(name, name, key, days)
    builder = builder.add_extension(x509.BasicConstraints(True, 0), critical=True)
    return _Pair(builder.sign(key, hashes.SHA256()), key)


def _signed(
    authority: _Pair,
    name: str,
    usage: x509.ObjectIdentifier,
    alternatives: list[x509.GeneralName],
    days: int,
) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _begun(_named(name), authority.certificate.subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return _Pair(builder.sign(authority.key, hashes.SHA256()), key)


def _begun(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    # Clocks of machines differ: valid from yesterday on.
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


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _text(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _secret(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(folder: str, name: str, content: bytes) -> str:
    """All files are private: the keys must be, and nobody else needs the others."""
    path = os.path.join(folder, name)
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(content)
    return path
