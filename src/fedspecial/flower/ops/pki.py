"""Keys and certificates of a federation: an authority, the SuperLink's certificate, one key pair a node.

Made with the `cryptography` package that Flower brings; all on the curve P-384. Private keys can be read by their owner
only, and nothing that exists is ever written over.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedspecial.errors import InputError

LOCAL_HOSTS = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Authority:
    """certificate: given to every node and operator · key: stays where certificates are made"""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class ServerIdentity:
    """What a SuperLink needs for TLS."""

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class NodeKey:
    """private: stays at the site · public: is registered at the SuperLink under the site's name"""

    name: str
    private: Path
    public: Path


def make_authority(folder: Path, *, days: int = 3650) -> Authority:
    """``ca.pem`` and ``ca.key``: whoever has the first can check the server, whoever has the second can be it."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _named("Federation authority")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    certificate = (
        _builder(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA384())
    )
    made = Authority(folder / "ca.pem", folder / "ca.key")
    _write_all({made.key: (_pem(key), 0o600), made.certificate: (_pem(certificate), 0o644)})
    return made


def make_server_identity(
    folder: Path, authority: Authority, *, hosts: Sequence[str] = (), days: int = 825
) -> ServerIdentity:
    """``server.pem`` and ``server.key``, good for this machine and for `hosts` (names or addresses)."""
    try:
        issuer = x509.load_pem_x509_certificate(authority.certificate.read_bytes())
        signer = serialization.load_pem_private_key(authority.key.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise InputError(f"authority: {authority.certificate} and its key cannot be read ({error})") from None
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or signer.public_key() != issuer.public_key():
        raise InputError(f"authority: {authority.key} is not the key of {authority.certificate}")
    key = ec.generate_private_key(ec.SECP384R1())
    names = list(dict.fromkeys([*LOCAL_HOSTS, *hosts]))
    certificate = (
        _builder(_named("SuperLink"), issuer.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_host(name) for name in names]), critical=False)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_authority_identifier(signer), critical=False)
        .sign(signer, hashes.SHA384())
    )
    made = ServerIdentity(authority.certificate, folder / "server.pem", folder / "server.key")
    _write_all({made.key: (_pem(key), 0o600), made.certificate: (_pem(certificate), 0o644)})
    return made


def make_node_key(folder: Path, name: str) -> NodeKey:
    """``NAME`` and ``NAME.pub`` in OpenSSH form, as ``flower-supernode`` and ``flwr supernode register`` read them."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise InputError(f"node={name}: a name is made of letters, digits, '.', '_' and '-'")
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    made = NodeKey(name, folder / name, folder / f"{name}.pub")
    _write_all({made.private: (private, 0o600), made.public: (public + f" {name}\n".encode(), 0o644)})
    return made


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    if days < 1:
        raise InputError(f"days={days}: a certificate must be good for at least one")
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks of sites differ
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature, key_cert_sign=key_cert_sign, crl_sign=crl_sign,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _authority_identifier(signer: ec.EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if not re.fullmatch(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", name):
            raise InputError(f"host={name}: neither an address nor the name of a host (without a port)") from None
        return x509.DNSName(name)


def _pem(thing: ec.EllipticCurvePrivateKey | x509.Certificate) -> bytes:
    if isinstance(thing, x509.Certificate):
        return thing.public_bytes(serialization.Encoding.PEM)
    return thing.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_all(files: dict[Path, tuple[bytes, int]]) -> None:
    """New files only: a lost key cannot be had again."""
    for path in files:
        if os.path.lexists(path):
            raise InputError(f"{path}: it exists already; keys and certificates are never written over")
    for path, (data, mode) in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
