"""The cluster's certificate authority, what it issues, and kubeconfigs that carry it."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = dt.timedelta(days=365)
# Clocks of a machine that was just resumed can step back a little.
EARLIER = dt.timedelta(hours=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, in PEM."""

    certificate: bytes
    key: bytes

    def write(self, stem: Path) -> None:
        """Write STEM.crt and, readable by the owner alone, STEM.key."""
        stem.parent.mkdir(parents=True, exist_ok=True)
        stem.with_suffix(".crt").write_bytes(self.certificate)
        private = stem.with_suffix(".key")
        private.touch(mode=0o600)
        private.write_bytes(self.key)


class Authority:
    """Issues the certificates of one cluster."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls) -> Authority:
        """A new authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("kvtier-local-cluster", None)
        builder = _builder(name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, stem: Path) -> Authority:
        """The authority that `pair.write(stem)` stored."""
        key = serialization.load_pem_private_key(stem.with_suffix(".key").read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{stem}.key: expected an elliptic-curve key, got {type(key).__name__}")
        return cls(x509.load_pem_x509_certificate(stem.with_suffix(".crt").read_bytes()), key)

    @property
    def pair(self) -> Pair:
        """The authority's own certificate and key."""
        return Pair(self._certificate.public_bytes(serialization.Encoding.PEM), _pem(self._key))

    def client(self, user: str, group: str | None = None) -> Pair:
        """A certificate that makes its bearer the Kubernetes user `user` of `group`."""
        return self._issue(user, group, ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def server(self, name: str, names: Sequence[str], addresses: Sequence[ipaddress.IPv4Address]) -> Pair:
        """A certificate for a server reached by `names` and `addresses`."""
        others: list[x509.GeneralName] = [x509.DNSName(n) for n in names]
        others += [x509.IPAddress(a) for a in addresses]
        return self._issue(name, None, ExtendedKeyUsageOID.SERVER_AUTH, others)

    def _issue(
        self, name: str, group: str | None, usage: x509.ObjectIdentifier, others: Sequence[x509.GeneralName]
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name, group), self._certificate.subject, key)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if others:
            builder = builder.add_extension(x509.SubjectAlternativeName(others), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Pair(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def signing_key() -> Pair:
    """A key pair for service account tokens; its `certificate` is the bare public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return Pair(public, _pem(key))


def kubeconfig(server: str, authority: Authority, user: Pair) -> str:
    """A kubeconfig that holds all it needs within itself."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "local",
                "cluster": {"server": server, "certificate-authority-data": _base64(authority.pair.certificate)},
            }
        ],
        "users": [
            {
                "name": "user",
                "user": {
                    "client-certificate-data": _base64(user.certificate),
                    "client-key-data": _base64(user.key),
                },
            }
        ],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": "user"}}],
        "current-context": "local",
    }
    return yaml.safe_dump(document)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _name(name: str, group: str | None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if group is not None:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(attributes)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + VALID)
    )
