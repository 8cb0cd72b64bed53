"""Security: who may talk to a service, and how each side proves to the other that it may.

A dataset is code. So nobody without the token gets as far as a decoder: every control message
carries a proof in both directions, and every data connection begins with one.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
import ssl
import warnings
from dataclasses import dataclass, field

from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnauthenticatedError,
)
from penstock.service.host.ports import joined
from penstock.service.host.privacy import check_secret, check_unchanged
from penstock.service.host.tokens import find_token

PROOF_SIZE = 32
"""Bytes of a proof."""

_GIVE = (
    "set PENSTOCK_TOKEN (or PENSTOCK_TOKEN_FILE) to one secret for the dispatcher, its workers and "
    "its clients, or PENSTOCK_CERTIFICATES to a folder made with: penstock certs"
)

_CLEAR = (
    "everybody on the network between the machines can read functions and data, and change data; "
    "make certificates with: penstock certs FOLDER --host NAME, and set PENSTOCK_CERTIFICATES to a "
    "copy of that folder for the dispatcher, its workers and its clients"
)

_LOG = logging.getLogger("penstock.service")


@dataclass(frozen=True)
class Security:
    """What a server or a client knows: the token, and the folder of certificates if TLS is used.

    `given`: the token was given by somebody, so that other machines may know it; else it comes
    from a private file of this user.
    """

    token: bytes = field(repr=False)
    certificates: str | None = None
    origin: str = "the argument token"
    given: bool = True

    @classmethod
    def of_server(
        cls,
        host: str,
        port: int,
        token: str | bytes | None = None,
        certificates: str | None = None,
    ) -> Security:
        """For a server at `host`; elsewhere than on loopback only if something was given."""
        found = cls._find(token, certificates)
        found.check_exposure(host, port)
        found.warn_of_exposure(f"server at {joined(host, port)}", host)
        return found

    @classmethod
    def of_client(
        cls, address: str, token: str | bytes | None = None, certificates: str | None = None
    ) -> Security:
        """For a client (a worker is one, too) of the dispatcher at `address`."""
        found = cls._find(token, certificates)
        if not found.given and not is_loopback(split_address(address)[0]):
            raise UnauthenticatedError(
                f"dispatcher {address} is on another machine, and no token was given; {_GIVE}"
            )
        found.warn_of_exposure(f"dispatcher {address}", split_address(address)[0])
        return found

    @classmethod
    def _find(cls, token: str | bytes | None, certificates: str | None) -> Security:
        folder = certificates or os.environ.get("PENSTOCK_CERTIFICATES") or None
        if folder is not None:
            folder = os.path.abspath(os.path.expanduser(folder))
            if not os.path.isdir(folder):
                raise NotFoundError(
                    f"certificates: there is no folder {folder!r}; make a working set with: "
                    f"penstock certs {folder}"
                )
        found = find_token(token, folder)
        return cls(found.token, folder, found.origin, found.given)

    def check_exposure(self, host: str, port: int) -> None:
        """FailedPreconditionError if others could reach a server there, but none may use it."""
        if not self.given and not is_loopback(host):
            raise FailedPreconditionError(
                f"{host}:{port} can be reached from other machines, and no token was given; {_GIVE}"
            )

    def warn_of_exposure(self, who: str, host: str) -> None:
        """Warns, in the log as well, where others in a network could read what travels."""
        if self.certificates is None and not is_loopback(host):
            text = f"{who}: without TLS, {_CLEAR}"
            _LOG.warning("%s", text)
            warnings.warn(text, stacklevel=3)

    def _path(self, name: str) -> str:
        assert self.certificates is not None
        path = os.path.join(self.certificates, name)
        if not os.path.isfile(path):
            raise NotFoundError(
                f"certificates: {path!r} does not exist; make a working set with: "
                f"penstock certs {self.certificates}"
            )
        return path

    def server_context(self) -> ssl.SSLContext | None:
        """TLS for a server, which lets in only those who have a certificate; None without TLS."""
        return self._context(ssl.PROTOCOL_TLS_SERVER, "server") if self.certificates else None

    def client_context(self) -> ssl.SSLContext | None:
        """TLS for a client, which checks the server's certificate and name; None without TLS."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT, "client") if self.certificates else None

    def _context(self, protocol: int, role: str) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        certificate, key = self._path(f"{role}.pem"), self._path(f"{role}-key.pem")
        authority = self._path("ca.pem")
        check_secret(key, os.stat(key), "certificates")
        for path in (authority, certificate):
            check_unchanged(path, "certificates")
        try:
            context.load_verify_locations(authority)
            context.load_cert_chain(certificate, key)
        except ssl.SSLError as error:
            raise InvalidArgumentError(
                f"certificates: {self.certificates!r} has no usable {role} certificate ({error}); "
                "make a working set with: penstock certs"
            ) from None
        return context


def proof(token: bytes, *parts: bytes | bytearray | memoryview) -> bytes:
    """What only somebody with the token can say about these parts, each with its own length."""
    mac = hmac.new(token, digestmod="sha256")
    for part in parts:
        mac.update(len(part).to_bytes(8, "big"))
        mac.update(part)
    return mac.digest()


def proven(claim: bytes, token: bytes, *parts: bytes | bytearray | memoryview) -> bool:
    """Whether `claim` is the proof of these parts; takes as long whatever is wrong with it."""
    return hmac.compare_digest(claim, proof(token, *parts))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server at `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, with or without a scheme before it; IPv6 in brackets."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidArgumentError(
            f"address {address!r} must be host:port with a port of 1 to 65535, as in localhost:5050"
        )
    return host.strip("[]"), int(port)
