"""A certificate authority of the tests' own: server and client pairs, written as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key on disk."""

    cert: Path
    key: Path


class Authority:
    """Issues certificates into a directory."""

    def __init__(self, directory: Path, name: str = "test-ca") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject(name)
        self._certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self.cert = directory / f"{name}.pem"
        self.cert.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def server(
        self, name: str, *, hosts: tuple[str, ...] = ("127.0.0.1",), days: float = 1
    ) -> Pair:
        """A server's pair for addresses and DNS names; valid for so many days from now."""
        usage = (ExtendedKeyUsageOID.SERVER_AUTH,)
        return self._issue(name, _subject(name), usage, hosts, days * DAY)

    def client(self, user: str, *groups: str, days: float = 1) -> Pair:
        """A client's pair: CN is the user, O the groups."""
        usage = (ExtendedKeyUsageOID.CLIENT_AUTH,)
        return self._issue(user, _subject(user, *groups), usage, (), days * DAY)

    def node(
        self,
        name: str,
        *,
        names: tuple[str, ...] | None = None,
        ends: datetime.timedelta = DAY,
        begins: datetime.timedelta | None = None,
    ) -> Pair:
        """A node's pair for the agents' channel; a second one replaces the files of the first.

        `names` are the DNS names in place of the node's own; `ends` and `begins` (a day ago, and
        a day before its end) are counted from now.
        """
        both = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
        hosts = (name,) if names is None else names
        return self._issue(name, _subject(name), both, hosts, ends, begins=begins)

    def _issue(
        self,
        name: str,
        subject: x509.Name,
        usage: tuple[x509.ObjectIdentifier, ...],
        hosts: tuple[str, ...],
        ends: datetime.timedelta = DAY,
        *,
        begins: datetime.timedelta | None = None,
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(subject, key.public_key(), ends, begins).add_extension(
            x509.ExtendedKeyUsage(usage), critical=False
        )
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pair = Pair(self._directory / f"{name}.crt", self._directory / f"{name}.key")
        pair.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        ends: datetime.timedelta = DAY,
        begins: datetime.timedelta | None = None,
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, now + ends) - DAY if begins is None else now + begins)
            .not_valid_after(now + ends)
        )


def _subject(name: str, *groups: str) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
