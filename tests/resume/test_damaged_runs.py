"""A run with a truncated, edited or missing file is refused in one line, and nothing is overwritten."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from runs import contents

import fedspecial
from fedspecial.engine import checkpoint
from fedspecial.errors import InputError
from processes import Fork

pytestmark = pytest.mark.usefixtures("rendered")


@pytest.fixture(scope="module")
def stopped(fork: Fork, tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run killed in its second task, with an anchor and clients that have local BatchNorm statistics."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    settings = [setting for setting in tiny if not setting.startswith(("model", "width"))]
    outcome = fork(
        "run",
        *settings,
        "model=cnn",
        "width=4",
        "batch_norm=local",
        f"out={folder}",
        kill_at=["before a round's event", 5],
    )
    assert outcome.code == -9
    return folder


def saved(folder: Path) -> dict:
    return json.loads((folder / "checkpoint" / "checkpoint.json").read_text())


def edit(path: Path, change: Callable[[dict], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content, indent=1))


def blob(folder: Path, *keys: str) -> Path:
    found = saved(folder)
    for key in keys:
        found = found[key] if key else next(iter(found.values()))
    return folder / "checkpoint" / "blobs" / str(found)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip_one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def edit_settings(folder: Path, **changes: object) -> None:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes, sort_keys=False))


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "model cut off": (lambda d: truncate(blob(d, "vector")), "was changed or cut off"),
    "model flipped in one bit": (lambda d: flip_one_bit(blob(d, "vector")), "was changed or cut off"),
    "model empty": (lambda d: blob(d, "vector").write_bytes(b""), "was changed or cut off"),
    "model missing": (lambda d: blob(d, "vector").unlink(), "is missing"),
    "anchor cut off": (lambda d: truncate(blob(d, "anchor")), "was changed or cut off"),
    "client state cut off": (lambda d: truncate(blob(d, "clients", "")), "was changed or cut off"),
    "client state missing": (lambda d: blob(d, "clients", "").unlink(), "is missing"),
    "checkpoint.json cut off": (lambda d: truncate_to_half(d / "checkpoint" / "checkpoint.json"), "is cut off"),
    "checkpoint.json empty": (lambda d: (d / "checkpoint" / "checkpoint.json").write_text(""), "is cut off"),
    "checkpoint.json no object": (lambda d: (d / "checkpoint" / "checkpoint.json").write_text("[]"), "is cut off"),
    "round edited": (
        lambda d: edit(d / "checkpoint" / "checkpoint.json", lambda c: c["position"].update(round=2)),
        "was changed after it was written",
    ),
    "events cut off": (lambda d: (d / "events.jsonl").write_bytes(b""), "events.jsonl is shorter"),
    "events missing": (lambda d: (d / "events.jsonl").unlink(), "events.jsonl is shorter"),
    "lam edited": (lambda d: edit_settings(d, lam=0.5), "config.yaml: it was changed after the run began"),
    "seed edited": (lambda d: edit_settings(d, seed=3), "config.yaml: it was changed after the run began"),
    "config no YAML": (lambda d: (d / "config.yaml").write_text("a: [b"), "config.yaml: is not valid YAML"),
    "config missing": (lambda d: (d / "config.yaml").unlink(), "is not a run directory (it has no config.yaml)"),
}


def test_a_checkpoint_of_an_older_format_is_refused_with_its_version(stopped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    content = {key: value for key, value in saved(folder).items() if key not in ("seal", "anchor", "models")}
    (folder / "checkpoint" / "checkpoint.json").write_bytes(checkpoint._sealed({**content, "format": 1}))
    with pytest.raises(
        InputError, match=r"checkpoint\.json has format 1, but this version of fedspecial reads format 2"
    ):
        fedspecial.resume(folder)


def truncate_to_half(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_refused_before_anything_is_written(stopped: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    damage_run, message = DAMAGES[damage]
    damage_run(folder)
    before = contents(folder)
    with pytest.raises(InputError) as caught:
        fedspecial.resume(folder)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)
    assert contents(folder) == before


def test_resuming_a_damaged_run_gives_one_line_and_exit_code_2(fork: Fork, stopped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    truncate(blob(folder, "vector"))
    assert "(its content no longer has its hash)" in fork("resume", folder).error_line


def test_files_that_a_kill_left_behind_are_not_trusted(
    fork: Fork, finished_run: Path, tiny: list[str], tmp_path: Path
) -> None:
    """The model of the killed round has a file named after its hash, but its content was not written to the disk."""
    folder = tmp_path / "run"
    assert fork("run", *tiny, f"out={folder}", kill_at=["before fsync of a blob", 4]).code == -9
    known = saved(folder)["vector"]
    leftover = [path for path in (folder / "checkpoint" / "blobs").iterdir() if path.name != known]
    assert leftover
    for path in leftover:
        path.write_bytes(b"")
    assert fork("resume", folder, kill_at=["before fsync of checkpoint.json", 2]).code == -9
    assert fork("resume", folder).code == 0
    assert (folder / "model.safetensors").read_bytes() == (finished_run / "model.safetensors").read_bytes()


def test_a_damaged_result_does_not_count_as_a_finished_run(fork: Fork, finished_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished_run, folder)
    (folder / "result.json").write_text('{"method": "special"')
    assert "result.json: it was cut off or changed" in fork("resume", folder).error_line
    (folder / "result.json").unlink()
    assert fork("resume", folder).code == 0
    assert (folder / "model.safetensors").read_bytes() == (finished_run / "model.safetensors").read_bytes()


def without_format(folder: Path) -> None:
    path = folder / "config.yaml"
    content = yaml.safe_load(path.read_text())
    content.pop("about")
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def set_about(folder: Path, about: dict[str, object]) -> None:
    edit_settings(folder, about=about)


OTHER_FORMATS: dict[str, tuple[Callable[[Path], object], str]] = {
    "an empty mapping": (lambda d: (d / "config.yaml").write_text("{}\n"), "has no about.format"),
    "settings alone": (without_format, "has no about.format"),
    "a text instead of about": (lambda d: edit_settings(d, about="me"), "has no about.format"),
    "the first format": (
        lambda d: set_about(d, {"words_sha256": "0"}),
        "run directory of format 1; this version of fedspecial reads the formats 2 and 3 only",
    ),
    "a later format": (lambda d: set_about(d, {"format": 4}), "run directory of format 4"),
    "a missing hash": (lambda d: set_about(d, {"format": 2}), "it was changed after the run began"),
}


@pytest.mark.parametrize("kind", OTHER_FORMATS)
def test_a_config_that_this_version_did_not_write_is_not_resumed(stopped: Path, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    damage_run, message = OTHER_FORMATS[kind]
    damage_run(folder)
    before = contents(folder)
    with pytest.raises(InputError) as caught:
        fedspecial.resume(folder)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(folder) == before


def test_a_folder_with_only_an_empty_config_starts_no_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{}\n")
    with pytest.raises(InputError, match="this is not a run directory"):
        fedspecial.resume(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
