"""What a SuperNode is started with: its node config and its private key, checked before Flower sees them.

Flower answers a wrong one with a traceback, and leaves out parts of a node config that it cannot read.
"""

from __future__ import annotations

import itertools
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedspecial.errors import InputError, did_you_mean

KNOWN = ("site", "data", "tasks", "state", "policy")
"""Keys of the node config that fedspecial reads; an app's own code may read others."""
_QUOTED, _PLAIN = r"""(?:"[^"]*"|'[^']*')""", r"""[^\s"']\S*"""
_PAIR = re.compile(rf"([^\s=]+)=({_QUOTED}|{_PLAIN})")
"""KEY=VALUE, where the value is in quotes or has no spaces; a test compares it with what Flower makes of the text."""


def parse_node_config(text: str) -> dict[str, Any]:
    """The node config as flower-supernode reads it: pairs KEY=VALUE in the notation of TOML, or a .toml file."""
    if text.endswith(".toml"):
        return _read_toml(Path(text))
    rest = _PAIR.sub(" ", text).split()
    if rest:
        raise InputError(f'--node-config {text}: "{rest[0]}" is not KEY=VALUE, or a quotation mark is missing')
    config: dict[str, Any] = {}
    for key, value in _PAIR.findall(text):
        try:
            config |= tomllib.loads(f"{key} = {value}")
        except tomllib.TOMLDecodeError:
            raise InputError(f'--node-config: {key}={value}: text needs double quotes: {key}="{value}"') from None
    return config


def misspelt(config: Mapping[str, Any]) -> list[str]:
    """Keys that nobody reads but that look like one that is read: a misspelt `policy` would be no policy."""
    unknown = [key for key in config if key not in KNOWN]
    return [f"node config: unknown key '{key}'{hint}" for key in unknown if (hint := did_you_mean(key, KNOWN))]


def read_private_key(path: Path) -> bytes:
    """The public key, in OpenSSH format, of a site's private key file that only its owner can read."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        mode, content = path.stat().st_mode, path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: the private key cannot be read ({error.strerror})") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(f"{path}: others can read it; chmod 600 {path}")
    try:
        loaded = serialization.load_ssh_private_key(content, password=None)
    except (ValueError, TypeError):
        raise InputError(f"{path}: not a private key in OpenSSH format without a passphrase") from None
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise InputError(f"{path}: not an ECDSA key")
    return loaded.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def check_arguments(arguments: Sequence[str]) -> list[str]:
    """Check the arguments of flower-supernode that fedspecial knows; returns warnings."""
    warnings: list[str] = []
    for name, value in _options(arguments):
        if name == "--node-config":
            warnings += misspelt(parse_node_config(value))
        elif name == "--auth-supernode-private-key":
            read_private_key(Path(value).expanduser())
        elif name == "--root-certificates" and not Path(value).expanduser().is_file():
            raise InputError(f"--root-certificates {value}: there is no such file; it is the federation's ca.pem")
    return warnings


def _options(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """The options with their values, given as two arguments or as one."""
    found = [pair for pair in itertools.pairwise(arguments) if pair[0].startswith("--") and "=" not in pair[0]]
    joined = (part.partition("=") for part in arguments if part.startswith("--"))
    return [*found, *((name, value) for name, mark, value in joined if mark)]


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--node-config {path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"--node-config {path}: not a TOML file ({error})") from None
