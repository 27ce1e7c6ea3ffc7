"""The server's Ed25519 key, with which it signs the audit log and the heads that sites store.

It needs the package `cryptography`, a dependency of Flower. Without it, logs can be read but signatures not checked.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspecial.core.files import write_atomic, write_new
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_VARIABLE = "FEDSPECIAL_SIGNING_KEY"
KEY_FILE, PUBLIC_FILE = "signing.key", "signing.pub"


@dataclass(frozen=True)
class Signer:
    """public: the public key, 64 hexadecimal digits"""

    public: str
    _key: Ed25519PrivateKey

    def sign(self, data: bytes) -> str:
        return self._key.sign(data).hex()


@dataclass(frozen=True)
class Receipt:
    """A head of the audit log, signed by the server: who has it can prove that the log had this line.

    n: number of the line · head: its hash · key: the server's public key
    """

    run: str
    n: int
    head: str
    key: str
    signature: str

    @staticmethod
    def of(signer: Signer, run: str, n: int, head: str) -> Receipt:
        return Receipt(run, n, head, signer.public, signer.sign(_statement(run, n, head)))

    @staticmethod
    def of_json(content: Any) -> Receipt:
        try:
            receipt = Receipt(**content)
        except TypeError:
            raise InputError("receipt: not a receipt of an audit log") from None
        kinds = {name: int if name == "n" else str for name in vars(receipt)}
        if not all(isinstance(value, kinds[name]) for name, value in vars(receipt).items()):
            raise InputError("receipt: not a receipt of an audit log")
        return receipt

    @property
    def valid(self) -> bool:
        return is_signed(self.key, self.signature, _statement(self.run, self.n, self.head))


def open_signer(folder: Path) -> Signer:
    """The key named by FEDSPECIAL_SIGNING_KEY, or signing.key in the run directory; created if it does not exist.

    The public key is written beside the run, for everyone who checks its log.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path, public = Path(os.environ.get(KEY_VARIABLE) or folder / KEY_FILE), folder / PUBLIC_FILE
    if not path.exists():
        if public.exists():  # a new key could not continue the log, and would hide that the old one is lost
            raise InputError(
                f"{path}: the key that signs the audit log is missing; restore it from a copy, or name it with "
                f"{KEY_VARIABLE} (its public key is in {public})"
            )
        key = Ed25519PrivateKey.generate()
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new(path, key.private_bytes(encoding, form, serialization.NoEncryption()))
    try:
        loaded = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        raise InputError(f"{path}: not a private key that can be read") from None
    if not isinstance(loaded, Ed25519PrivateKey):
        raise InputError(f"{path}: not an Ed25519 key")
    signer = Signer(loaded.public_key().public_bytes_raw().hex(), loaded)
    if not public.exists():
        write_atomic(public, f"{signer.public}\n".encode())
    return signer


def can_check() -> bool:
    return importlib.util.find_spec("cryptography") is not None


def is_signed(public: str, signature: str, data: bytes) -> bool:
    """Whether the owner of the public key signed these bytes."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature), data)
    except (InvalidSignature, ValueError):
        return False
    return True


def _statement(run: str, n: int, head: str) -> bytes:
    return f"fedspecial audit {run} {n} {head}".encode()
