"""The server signs its audit log, sites keep its heads, and a published model is checked against all of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from flower_fixtures import SHORT, SITES, federate, grid_of
from typer.testing import CliRunner

from fedspecial.cli.main import app
from fedspecial.errors import InputError
from fedspecial.flower.app.site_receipts import FILE, keep_receipt
from fedspecial.flower.governance import audit
from fedspecial.flower.governance.audit import AuditLog, read_lines, verify
from fedspecial.flower.governance.signing import Receipt, open_signer
from fedspecial.flower.ops.verify import verify_published

pytestmark = pytest.mark.usefixtures("rendered", "unpictured")


@pytest.fixture(scope="module")
def finished_run(rendered: None, unpictured: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return federate(tmp_path_factory.mktemp("federation"), **SHORT)


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    return Path(shutil.copytree(finished_run.parent, tmp_path / "copy") / "run")


def cli(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["flower", *map(str, arguments)])


# --- signatures -------------------------------------------------------------------------------------------------


def test_every_line_of_a_federation_is_signed(run: Path) -> None:
    report = verify(run / "audit.jsonl", key=(run / "signing.pub").read_text().strip())
    assert report.intact
    assert report.signed == report.lines > 2


def test_the_private_key_is_readable_by_its_owner_only(run: Path) -> None:
    assert (run / "signing.key").stat().st_mode & 0o077 == 0


def test_a_log_that_somebody_else_wrote_is_detected(run: Path, tmp_path: Path) -> None:
    """The same lines, with consistent hashes, signed with another key: consistent, but not the server's."""
    forged = AuditLog(tmp_path / "audit.jsonl", other := open_signer(tmp_path))
    for line in read_lines(run / "audit.jsonl"):
        fields = {k: v for k, v in line.items() if k not in ("n", "previous", "time", "event", "signature", "hash")}
        forged.append(line["event"], {**fields, **({"key": other.public} if "key" in fields else {})})
    assert verify(forged.path).intact
    genuine = (run / "signing.pub").read_text().strip()
    assert verify(forged.path, key=genuine).problems == ["it is signed with another key"]


def test_a_line_without_or_with_a_foreign_signature_is_named(run: Path, tmp_path: Path) -> None:
    path = run / "audit.jsonl"
    lines = path.read_bytes()
    AuditLog.__init__(unsigned := AuditLog.__new__(AuditLog), path, open_signer(run))
    unsigned._signer = None
    unsigned.append("note", {})
    assert verify(path).problems == [f"line {len(lines.splitlines()) + 1} is not signed"]
    path.write_bytes(lines)
    stranger = AuditLog(path, open_signer(run))
    stranger._signer = open_signer(tmp_path)
    stranger.append("note", {})
    assert verify(path).problems == [f"the signature of line {len(lines.splitlines()) + 1} is not valid"]


def test_a_log_is_not_continued_with_another_key(run: Path) -> None:
    for name in ("signing.key", "signing.pub"):
        (run / name).unlink()
    with pytest.raises(InputError, match="signed with another key"):
        AuditLog(run / "audit.jsonl", open_signer(run))
    with pytest.raises(InputError, match="signed with another key"):
        AuditLog(run / "audit.jsonl")


def test_a_lost_key_is_named_and_not_replaced_by_a_new_one(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new key would hide that the old one has to be restored; the same for a forgotten FEDSPECIAL_SIGNING_KEY."""
    (run / "signing.key").rename(run.parent / "moved.key")
    done = cli("rollback", run, "--to", "1/1", "--reason", "test")
    assert done.exit_code == 2
    assert "signing.key: the key that signs the audit log is missing; restore it" in " ".join(done.output.split())
    assert not (run / "signing.key").exists()
    monkeypatch.setenv("FEDSPECIAL_SIGNING_KEY", str(run.parent / "moved.key"))
    assert open_signer(run).public == (run / "signing.pub").read_text().strip()


def test_a_log_from_before_signatures_is_continued_and_says_so(tmp_path: Path) -> None:
    AuditLog(tmp_path / "audit.jsonl").append("started", {"sites": []})
    signer = open_signer(tmp_path)
    AuditLog(tmp_path / "audit.jsonl", signer).append("started", {"key": signer.public, "sites": []})
    report = verify(tmp_path / "audit.jsonl")
    assert report.intact
    assert report.notes == ["lines 1 to 1 are not signed"]
    assert report.signed == 1


# --- heads at the sites -----------------------------------------------------------------------------------------


def test_each_site_stores_a_signed_head_that_is_in_the_log(run: Path) -> None:
    receipts = sorted(run.parent.glob(f"site-*/*/{FILE}"))
    assert len(receipts) == len(SITES)
    for path in receipts:
        receipt = Receipt.of_json(json.loads(path.read_bytes()))
        assert receipt.valid
        assert verify(run / "audit.jsonl", receipt.head, receipt.key).intact
        done = cli("audit", run / "audit.jsonl", "--head", path, "--key", run / "signing.pub")
        assert done.exit_code == 0, done.output
        assert "lines signed with the key" in done.output


def test_what_is_no_key_and_no_head_is_one_line_and_not_a_broken_log(run: Path) -> None:
    log, head = run / "audit.jsonl", verify(run / "audit.jsonl").head
    for option, value, message in (
        ("--key", run / "model.safetensors", "a file that contains them (signing.pub)"),
        ("--key", run, "a file that contains them (signing.pub)"),
        ("--key", "a" * 300, "a file that contains them (signing.pub)"),
        ("--head", head[:12], "neither a complete hash (64 hexadecimal digits) nor a file audit-head.json"),
        ("--head", run / "federation.json", "nor a file audit-head.json"),
        ("--head", run, "nor a file audit-head.json"),
    ):
        done = cli("audit", log, option, value)
        assert done.exit_code == 2, done.output
        assert message in " ".join(done.output.split())
    assert cli("audit", log, "--head", head.upper()).exit_code == 0


def test_an_empty_log_is_not_intact(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").touch()
    done = cli("audit", tmp_path / "audit.jsonl")
    assert done.exit_code == 1
    assert "NOT INTACT: it has no lines" in done.output


def test_a_site_refuses_a_log_that_became_shorter_or_changed(tmp_path: Path) -> None:
    signer = open_signer(tmp_path / "server-a") if (tmp_path / "server-a").mkdir() is None else None
    assert signer is not None
    folder, heads = tmp_path / "site", {n: f"{n:064x}" for n in range(9)}

    def receive(n: int, head: str, by: Any = signer) -> None:
        keep_receipt(folder, "r1", asdict(Receipt.of(by, "r1", n, head)))

    receive(4, heads[4])
    receive(4, heads[4])
    receive(6, heads[6])
    with pytest.raises(InputError, match="was cut or replaced: this site has its line 6"):
        receive(5, heads[5])
    with pytest.raises(InputError, match="was cut or replaced: this site has its line 6"):
        receive(6, heads[7])
    (tmp_path / "server-b").mkdir()
    with pytest.raises(InputError, match="another key than before"):
        receive(7, heads[7], open_signer(tmp_path / "server-b"))
    forged = {**asdict(Receipt.of(signer, "r1", 7, heads[7])), "head": heads[8]}
    with pytest.raises(InputError, match="signature of the server's audit log is not valid"):
        keep_receipt(folder, "r1", forged)
    with pytest.raises(InputError, match="not a receipt"):
        keep_receipt(folder, "r1", {"n": 1})


def test_sites_refuse_a_server_that_lost_lines_of_its_log(tmp_path: Path) -> None:
    """The run directory is set back to the first round, log and checkpoint together; the sites remember more."""
    saved: list[Path] = []

    def save(event: Any) -> None:
        if event.event == "round" and event.round == 1 and not saved:
            saved.append(Path(shutil.copytree(tmp_path / "run", tmp_path / "older")))

    settings = {**SHORT, "rounds": 3}
    federate(tmp_path, **settings, listeners=(save,))
    shutil.rmtree(tmp_path / "run")
    shutil.move(tmp_path / "older", tmp_path / "run")
    with pytest.raises(InputError, match="no quorum"):
        federate(tmp_path, **settings, grid=grid_of(tmp_path))
    refused = (tmp_path / "run" / "audit.jsonl").read_text()
    assert "audit log was cut or replaced" in refused


def test_a_head_of_zeros_is_refused(run: Path) -> None:
    done = cli("audit", run / "audit.jsonl", "--head", "0" * 64)
    assert done.exit_code != 0
    assert "it proves nothing" in done.output


# --- a published model ------------------------------------------------------------------------------------------


def test_a_published_model_is_verified_from_file_to_checkpoint(run: Path) -> None:
    found = verify_published(run / "published" / "task-1", key=(run / "signing.pub").read_text().strip())
    assert not found.problems
    assert "the audit log says that this model was published" in found.checks
    assert "the checkpoint has the same model" in found.checks
    done = cli("verify", run / "published" / "task-1", "--key", run / "signing.pub")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == "the model is verified"


def test_every_change_of_a_published_model_is_detected(run: Path) -> None:
    folder = run / "published" / "task-1"
    original = {path: path.read_bytes() for path in (*folder.iterdir(), run / "audit.jsonl")}
    promised = json.loads(original[folder / "promotion.json"])
    changes = {
        folder / "model.safetensors": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        folder / "README.md": lambda data: data.replace(promised["model_sha256"].encode(), b"0" * 64),
        folder / "promotion.json": lambda data: data.replace(promised["file_sha256"].encode(), b"0" * 64),
        run / "audit.jsonl": lambda data: b"".join(data.splitlines(keepends=True)[:-1]),
    }
    for path, change in changes.items():
        path.write_bytes(change(original[path]))
        assert verify_published(folder).problems, path
        path.write_bytes(original[path])
    assert not verify_published(folder).problems


def test_a_model_with_consistent_files_that_was_never_published_is_detected(run: Path) -> None:
    """Model, card and promotion.json are replaced together; only the log knows better."""
    folder = run / "published" / "task-1"
    old = json.loads((folder / "promotion.json").read_bytes())["file_sha256"]
    model = (folder / "model.safetensors").read_bytes() + b" "
    new = audit.hashlib.sha256(model).hexdigest()
    (folder / "model.safetensors").write_bytes(model)
    for name in ("README.md", "promotion.json"):
        (folder / name).write_text((folder / name).read_text().replace(old, new))
    assert verify_published(folder).problems == ["the audit log does not say that this model was published"]


def test_a_folder_without_a_published_model_is_one_line(tmp_path: Path) -> None:
    done = cli("verify", tmp_path)
    assert done.exit_code != 0
    assert "not a published model" in done.output
