"""Keys and certificates of a federation: a certificate authority, the SuperLink's certificate, a key pair per node.

They are created with the `cryptography` package, a dependency of Flower, on the curve P-384. Private keys and new
folders are readable by their owner only. Existing files are never overwritten.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedspecial.core.files import write_new
from fedspecial.errors import InputError

LOCAL_HOSTS = ("localhost", "127.0.0.1")
AUTHORITY, SERVER = "authority", "server"
"""Folders of the keys of a federation; the other folders have the names of sites."""


@dataclass(frozen=True)
class Authority:
    """certificate: given to every node and operator · key: stays where certificates are created"""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class ServerIdentity:
    """The files that a SuperLink needs for TLS."""

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class NodeKey:
    """private: stays at the site · public: registered at the SuperLink under the site's name"""

    name: str
    private: Path
    public: Path


def make_keys(folder: Path, hosts: Sequence[str], nodes: Sequence[str]) -> Iterator[str]:
    """All folders of ``fedspecial flower keys``; yields a line about each that was written.

    Without the authority's folder, which is kept off-line, nothing is created that would need a second authority: the
    sites trust only the first. A site's folder needs only a copy of its certificate, which the other folders have.
    """
    authority = Authority(folder / AUTHORITY / "ca.pem", folder / AUTHORITY / "ca.key")
    needs_server = bool(hosts) or not (folder / SERVER / "server.pem").exists()
    _check_new(folder, hosts, nodes, needs_server=needs_server)
    if not authority.certificate.exists() and (copies := sorted(folder.glob("*/ca.pem"))):
        if needs_server:
            raise InputError(
                f"{authority.key}: it is not here, and a new authority would be refused by everybody who has "
                f"{copies[0]}; put the folder '{AUTHORITY}' back while the server's certificate is created"
            )
        if others := [path for path in copies if path.read_bytes() != copies[0].read_bytes()]:
            raise InputError(f"{others[0]}: another certificate than {copies[0]}; put the folder '{AUTHORITY}' back")
        authority = Authority(copies[0], authority.key)
    try:
        if not authority.certificate.exists():
            make_authority(folder / AUTHORITY)
            about = "it creates certificates: keep the folder off-line"
            yield f"wrote {authority.key} ({about}) and {authority.certificate}"
        if needs_server:
            server = make_server_identity(folder / SERVER, authority, hosts=hosts)
            add_certificate(folder / SERVER, authority)
            yield f"wrote {server.certificate}, {server.key} and ca.pem (the folder is for the SuperLink)"
        for name in nodes:
            key = make_node_key(folder / name, name)
            add_certificate(folder / name, authority)
            about = f"the folder is only for site {name}; register {name}.pub"
            yield f"wrote {key.private}, {key.public} and ca.pem ({about})"
    except OSError as error:
        raise InputError(f"{error.filename or folder}: cannot be written ({error.strerror})") from None


def _check_new(folder: Path, hosts: Sequence[str], nodes: Sequence[str], *, needs_server: bool) -> None:
    """Refuse what cannot be created before anything is: the same command can then be given again, corrected."""
    for name in hosts:
        _host(name)
    for name in nodes:
        _check_node(name)
        if name in (AUTHORITY, SERVER):
            raise InputError(f"--node {name}: the name of another folder; choose another name")
        if nodes.count(name) > 1:
            raise InputError(f"--node {name}: it is given twice")
        _check_absent([folder / name / name, folder / name / f"{name}.pub"])
    if needs_server:
        _check_absent([folder / SERVER / "server.key", folder / SERVER / "server.pem"])


def make_authority(folder: Path, *, days: int = 3650) -> Authority:
    """Create ``ca.pem``, which verifies the server, and ``ca.key``, which can create certificates of servers."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _common_name("Federation authority")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    certificate = (
        _builder(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA384())
    )
    created = Authority(folder / "ca.pem", folder / "ca.key")
    _write_all({created.key: (_pem(key), 0o600), created.certificate: (_pem(certificate), 0o644)})
    return created


def make_server_identity(
    folder: Path, authority: Authority, *, hosts: Sequence[str] = (), days: int = 825
) -> ServerIdentity:
    """Create ``server.pem`` and ``server.key``, valid for this machine and for `hosts` (names or addresses)."""
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
        _builder(_common_name("SuperLink"), issuer.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_host(name) for name in names]), critical=False)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_authority_identifier(signer), critical=False)
        .sign(signer, hashes.SHA384())
    )
    created = ServerIdentity(authority.certificate, folder / "server.pem", folder / "server.key")
    _write_all({created.key: (_pem(key), 0o600), created.certificate: (_pem(certificate), 0o644)})
    return created


def make_node_key(folder: Path, name: str) -> NodeKey:
    """Create ``NAME`` and ``NAME.pub`` in the OpenSSH format that Flower's commands read."""
    _check_node(name)
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    created = NodeKey(name, folder / name, folder / f"{name}.pub")
    _write_all({created.private: (private, 0o600), created.public: (public + f" {name}\n".encode(), 0o644)})
    return created


def add_certificate(folder: Path, authority: Authority) -> None:
    """Put a copy of ``ca.pem`` into a folder that is handed over, if it is not there."""
    if not (folder / "ca.pem").exists():
        _write_all({folder / "ca.pem": (authority.certificate.read_bytes(), 0o644)})


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    if days < 1:
        raise InputError(f"days={days}: a certificate must be valid for at least one day")
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # the clocks of sites differ
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature, key_cert_sign=key_cert_sign, crl_sign=crl_sign,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _authority_identifier(signer: ec.EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())


def _check_node(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise InputError(f"node={name}: a name may contain letters, digits, '.', '_' and '-'")


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if not re.fullmatch(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", name):
            raise InputError(f"host={name}: neither an IP address nor a host name (without a port)") from None
        return x509.DNSName(name)


def _pem(item: ec.EllipticCurvePrivateKey | x509.Certificate) -> bytes:
    if isinstance(item, x509.Certificate):
        return item.public_bytes(serialization.Encoding.PEM)
    return item.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _check_absent(paths: Iterable[Path]) -> None:
    for path in paths:
        if os.path.lexists(path):
            raise InputError(f"{path}: the file exists already; keys and certificates are never overwritten")


def _write_all(files: dict[Path, tuple[bytes, int]]) -> None:
    """Create new files only: an overwritten key cannot be recovered. After an error, there is none of them."""
    _check_absent(files)
    written: list[Path] = []
    try:
        for path, (data, mode) in files.items():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_new(path, data, mode)
            written.append(path)
    except OSError:
        for path in written:
            path.unlink()
        raise
