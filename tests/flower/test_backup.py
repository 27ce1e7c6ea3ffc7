"""Backups of server and sites: a restored federation continues bit for bit; damaged ones are refused."""

from __future__ import annotations

import filecmp
import io
import shutil
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flower_fixtures import SITES, federate, finished
from typer.testing import CliRunner

from fedspecial.cli.main import app
from fedspecial.core.events import RoundFinished
from fedspecial.core.files import write_atomic
from fedspecial.errors import InputError
from fedspecial.flower.governance.audit import verify
from fedspecial.flower.ops import backup as backups
from fedspecial.flower.ops.backup import back_up, restore

pytestmark = pytest.mark.usefixtures("rendered", "unpictured")
SETTINGS = {"method": "flwf2t", "rounds": 2, "clients_per_round": 4}
"""A method with client states, which the sites store."""


def cli(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["flower", *map(str, arguments)])


class PowerCutError(Exception):
    """The machine of the server is switched off."""


def cut_after_the_first_round_of_task_2(event: Any) -> None:
    if isinstance(event, RoundFinished) and (event.task, event.round) == (2, 1):
        raise PowerCutError


@pytest.fixture(scope="module")
def interrupted(rendered: None, unpictured: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation that was interrupted, with backups of the server and of every site."""
    folder = tmp_path_factory.mktemp("federation")
    with pytest.raises(PowerCutError):
        federate(folder, listeners=(cut_after_the_first_round_of_task_2,), **SETTINGS)
    (folder / "backups").mkdir()
    for name in ("run", *(f"site-{number}" for number in range(len(SITES)))):
        assert cli("backup", folder / name, folder / "backups" / f"{name}.tar.gz").exit_code == 0
    return folder


def test_a_restored_federation_continues_bit_for_bit(interrupted: Path) -> None:
    model = finished(federate(interrupted, **SETTINGS))["model_sha256"]
    for file in sorted((interrupted / "backups").iterdir()):
        folder = interrupted / file.name.removesuffix(".tar.gz")
        shutil.rmtree(folder)
        assert cli("restore", file, folder).exit_code == 0
    for folder in (interrupted / "run", *interrupted.glob("site-*")):
        assert [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077] == []
    assert not (interrupted / "run" / "finished.json").exists()
    run = federate(interrupted, **SETTINGS)
    assert finished(run)["model_sha256"] == model
    assert verify(run / "audit.jsonl", finished(run)["audit_head"]).intact


def test_a_backup_can_be_taken_while_the_run_works(tmp_path: Path) -> None:
    taken: list[int] = []

    def take(event: Any) -> None:
        if isinstance(event, RoundFinished):
            taken.append(back_up(tmp_path / "run", tmp_path / f"{len(taken)}.tar.gz"))

    federate(tmp_path, domains="paper", listeners=(take,))
    shutil.rmtree(tmp_path / "run")
    restore(tmp_path / "1.tar.gz", tmp_path / "run")
    # The sites have seen later lines of the audit log, and refuse a server that went back behind them.
    for site in range(len(SITES)):
        for head in (tmp_path / f"site-{site}").rglob("audit-head.json"):
            head.unlink()
    assert (federate(tmp_path, domains="paper") / "finished.json").exists()


def test_a_backup_of_large_files_needs_little_memory(tmp_path: Path) -> None:
    folder, file, back = tmp_path / "run", tmp_path / "a.tar.gz", tmp_path / "b"
    folder.mkdir()
    (folder / "federation.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"0123456789abcdef" * 2**22)  # 64 MiB
    tracemalloc.start()
    back_up(folder, file)
    restore(file, back)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 2**20
    assert filecmp.cmpfiles(folder, back, ["federation.json", "model.safetensors"], shallow=False)[0] == [
        *("federation.json", "model.safetensors")
    ]


def test_a_file_that_changes_after_it_was_opened_is_stored_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is replaced, a log grows, and a log that is cut is reported."""
    run = tmp_path / "run"
    (run / "checkpoint").mkdir(parents=True)
    large = 2 * backups.SMALL
    (run / "federation.json").write_text("{}")
    write = backups._write_archive

    def change(replaced: bytes, log: int) -> Callable[..., None]:
        def changed(*arguments: Any) -> None:
            write_atomic(run / "checkpoint" / "theta.safetensors", replaced)
            with (run / "events.jsonl").open("r+b") as file:
                file.truncate(log)
            write(*arguments)

        return changed

    for name in ("checkpoint/theta.safetensors", "events.jsonl"):
        (run / name).write_bytes(b"1" * large)
    monkeypatch.setattr(backups, "_write_archive", change(b"2" * large, large + 100))
    back_up(run, tmp_path / "a.tar.gz")
    restore(tmp_path / "a.tar.gz", tmp_path / "a")
    for name in ("checkpoint/theta.safetensors", "events.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == b"1" * large
    monkeypatch.setattr(backups, "_write_archive", change(b"3" * large, 50))
    with pytest.raises(InputError, match=r"b\.tar\.gz: cannot be written"):
        back_up(run, tmp_path / "b.tar.gz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.tar.gz", "run"]


def test_nothing_is_replaced_and_nothing_damaged_is_restored(interrupted: Path, tmp_path: Path) -> None:
    file = interrupted / "backups" / "run.tar.gz"
    assert "exists already" in cli("backup", interrupted / "run", file).output
    assert "exists already" in cli("restore", file, tmp_path).output
    assert "neither the run directory" in cli("backup", tmp_path, tmp_path / "x").output
    data = file.read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(data[: len(data) // 2])
    assert "not a complete backup" in cli("restore", tmp_path / "cut.tar.gz", tmp_path / "a").output
    for name, complaint in (("../evil", "does not belong into a backup"), ("extra", "is missing or was changed")):
        changed = tmp_path / "changed.tar.gz"
        with tarfile.open(file) as old, tarfile.open(changed, "w:gz") as new:
            for member in old:
                new.addfile(member, old.extractfile(member))
            new.addfile(tarfile.TarInfo(name), io.BytesIO())
        assert complaint in cli("restore", changed, tmp_path / "b").output.replace("\n", " ")
    scratched = bytearray(data)
    scratched[len(data) // 2 : len(data) // 2 + 64] = b"\xff" * 64
    (tmp_path / "scratched.tar.gz").write_bytes(scratched)
    assert "Error: " in cli("restore", tmp_path / "scratched.tar.gz", tmp_path / "a").stderr
    assert "cannot be read (No such file" in cli("restore", tmp_path / "absent.tar.gz", tmp_path / "a").output
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()


def test_a_backup_is_not_written_into_the_folder_whose_next_backup_would_contain_it(interrupted: Path) -> None:
    inside = interrupted / "run" / "monday.tar.gz"
    assert "the next backup would contain it" in cli("backup", interrupted / "run", inside).output.replace("\n", " ")
    assert not inside.exists()


def test_a_site_can_delete_what_it_stored_and_is_told_what_remains(tmp_path: Path) -> None:
    state = tmp_path / "state"
    for path in (
        "r1/states/1.safetensors",
        "r1/payloads/a.safetensors",
        "r1/audit-head.json",
        "r2/states/1.safetensors",
    ):
        (state / path).parent.mkdir(parents=True, exist_ok=True)
        (state / path).write_text("{}")
    assert "it stores nothing about run r3 (it has r1, r2)" in cli("forget-site", state, "--run", "r3").output
    shown = cli("forget-site", state, "--run", "r1").output.replace("\n", " ")
    assert "its influence on the model is not removed" in shown
    assert [path.name for path in (state / "r1").iterdir()] == ["audit-head.json"]
    assert (state / "r2" / "states").exists()
    cli("forget-site", state)
    assert not (state / "r2" / "states").exists()
