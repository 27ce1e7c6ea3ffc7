"""Keys and certificates are valid for their purpose and for nothing else."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flower_fixtures import full_disk
from typer.testing import CliRunner

from fedspecial.cli.main import app
from fedspecial.errors import InputError
from fedspecial.flower.governance.signing import open_signer
from fedspecial.flower.ops.pki import Authority, ServerIdentity, make_authority, make_node_key, make_server_identity


def shake(identity: ServerIdentity, authority: Path, host: str) -> str:
    """One TLS handshake over a real socket; the version that was agreed on."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(identity.certificate, identity.key)
    client = ssl.create_default_context(cafile=str(authority))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True) as connection:
                connection.recv(1)
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=host) as connection:
            return str(connection.version())
    finally:
        ours.close()
        thread.join(10)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "link.hospital.example", "10.1.2.3"])
def test_the_certificate_is_valid_for_this_machine_and_the_given_hosts(tmp_path: Path, host: str) -> None:
    authority = make_authority(tmp_path)
    identity = make_server_identity(tmp_path, authority, hosts=["link.hospital.example", "10.1.2.3"])
    assert shake(identity, authority.certificate, host) == "TLSv1.3"


def test_it_is_not_valid_for_another_host_or_another_authority(tmp_path: Path) -> None:
    authority = make_authority(tmp_path / "a")
    identity = make_server_identity(tmp_path / "a", authority)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake(identity, authority.certificate, "elsewhere.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(identity, make_authority(tmp_path / "b").certificate, "localhost")


def test_node_keys_are_matching_p384_keys_in_openssh_format(tmp_path: Path) -> None:
    key = make_node_key(tmp_path, "north")
    private = load_ssh_private_key(key.private.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    assert load_ssh_public_key(key.public.read_bytes()) == private.public_key()
    assert make_node_key(tmp_path, "south").public.read_bytes() != key.public.read_bytes()


def test_private_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    identity = make_server_identity(tmp_path, authority)
    for path in (authority.key, identity.key, make_node_key(tmp_path, "north").private):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_existing_keys_are_not_overwritten(tmp_path: Path) -> None:
    key = make_node_key(tmp_path, "north")
    before = key.private.read_bytes()
    with pytest.raises(InputError, match="exists already"):
        make_node_key(tmp_path, "north")
    assert key.private.read_bytes() == before


@pytest.mark.parametrize("name", ["", "../north", "a b", ".hidden", "x/y"])
def test_a_name_that_is_not_a_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"node="):
        make_node_key(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_a_key_of_another_authority_is_refused(tmp_path: Path) -> None:
    one, other = make_authority(tmp_path / "one"), make_authority(tmp_path / "other")
    with pytest.raises(InputError, match="is not the key of"):
        make_server_identity(tmp_path, Authority(one.certificate, other.key))
    with pytest.raises(InputError, match="cannot be read"):
        make_server_identity(tmp_path, Authority(one.certificate, tmp_path / "nothing"))


@pytest.mark.parametrize("host", ["link:8443", "http://link", "a b", ""])
def test_an_invalid_host_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(InputError, match="host="):
        make_server_identity(tmp_path, make_authority(tmp_path), hosts=[host])


# --- the command ------------------------------------------------------------------------------------------------


def keys(folder: Path, *arguments: str) -> str:
    """Output of ``fedspecial flower keys``, which must not be a traceback."""
    done = CliRunner().invoke(app, ["flower", "keys", str(folder), *arguments])
    assert done.exit_code in (0, 2), done.output
    return done.output


def test_a_site_that_comes_while_the_authority_is_offline_trusts_the_same_one(tmp_path: Path) -> None:
    """A second authority would be refused by all sites, and the new site would refuse the server."""
    folder = tmp_path / "keys"
    keys(folder, "--host", "link.example.org", "--node", "north")
    (folder / "authority").rename(tmp_path / "offline")
    assert "register east.pub" in keys(folder, "--node", "east")
    assert not (folder / "authority").exists()
    assert (folder / "east" / "ca.pem").read_bytes() == (folder / "server" / "ca.pem").read_bytes()


def test_the_server_s_certificate_is_never_of_a_second_authority(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    keys(folder, "--node", "north")
    (folder / "authority").rename(tmp_path / "offline")
    for name in ("server.pem", "server.key"):
        (folder / "server" / name).unlink()
    assert "put the folder 'authority' back" in keys(folder, "--host", "link.example.org")
    assert not (folder / "authority").exists()
    assert not (folder / "server" / "server.pem").exists()
    (tmp_path / "offline").rename(folder / "authority")
    keys(folder, "--host", "link.example.org")
    identity = ServerIdentity(*(folder / "server" / name for name in ("ca.pem", "server.pem", "server.key")))
    assert shake(identity, folder / "north" / "ca.pem", "link.example.org") == "TLSv1.3"


def test_without_the_authority_copies_that_differ_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    keys(folder, "--node", "north")
    make_authority(tmp_path / "other").certificate.rename(folder / "north" / "ca.pem")
    (folder / "authority").rename(tmp_path / "offline")
    assert "server/ca.pem: another certificate than" in keys(folder, "--node", "east")
    assert not (folder / "east").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--host", "http://link:1"),
        ("--node", "north", "--node", "a b"),
        ("--node", "north", "--node", "north"),
        ("--node", "north", "--node", "server"),
    ],
)
def test_a_command_with_a_mistake_creates_nothing_so_that_it_can_be_repeated(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    assert "Error: " in keys(tmp_path / "keys", *arguments)
    assert not (tmp_path / "keys").exists()


def test_a_file_in_the_place_of_the_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "cannot be written (Not a directory)" in keys(tmp_path / "file", "--node", "north")


@pytest.mark.parametrize("room", [50, 400])
def test_a_full_disk_leaves_no_half_of_a_pair_so_that_the_command_can_be_repeated(room: int, tmp_path: Path) -> None:
    """In 400 bytes there is room for the private key, but not for the certificate."""
    with full_disk(room), pytest.raises(OSError, match="File too large"):
        make_authority(tmp_path)
    assert not list(tmp_path.iterdir())
    assert make_authority(tmp_path).key.stat().st_size < 400


def test_a_full_disk_leaves_no_half_of_the_key_that_signs_the_audit_log(tmp_path: Path) -> None:
    with full_disk(50), pytest.raises(OSError, match="File too large"):
        open_signer(tmp_path)
    assert not list(tmp_path.iterdir())
    assert open_signer(tmp_path).public + "\n" == (tmp_path / "signing.pub").read_text()
