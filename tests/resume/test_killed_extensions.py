"""SIGKILL while a run is extended, then resume: the same model, events and result as without the kill."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from runs import assert_same_run, contents

from fedspecial import methods
from processes import Fork

KILLED = -9

POINTS = [
    ("after rename of config.yaml", 1),
    ("schema.json", 1),
    ("before run_extended", 1),
    ("training", 2),
    ("before a round's event", 2),
    ("after rename of checkpoint.json", 1),
    ("between last round and task_finished", 1),
    ("before run_finished", 1),
    ("plots", 1),
    ("result.json", 1),
]
FAST = [("after rename of config.yaml", 1), ("before run_extended", 1), ("training", 2), ("result.json", 1)]

SMALL = {
    "mfcl": ("iterations=5", "generator_width=4", "latent=8", "synthetic=8"),
    "fedcil": ("generator_width=4", "gan_size=16", "server_iterations=2"),
}
"""Sizes of generators, which otherwise take most of the time."""


@pytest.fixture(scope="module")
def extended_run(fork: Fork, finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extended") / "run"
    shutil.copytree(finished_run, folder)
    outcome = fork("extend", folder, "photo")
    assert outcome.code == 0, outcome.stderr
    return folder


def test_an_extended_run_of_the_command_line_has_the_model_of_the_whole_run(
    fork: Fork, tiny: list[str], extended_run: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    settings = ["domains=paper,neon,photo" if part.startswith("domains=") else part for part in tiny]
    assert fork("run", *settings, f"out={whole}").code == 0
    found, expected = (json.loads((folder / "result.json").read_text()) for folder in (extended_run, whole))
    for name in ("model_sha256", "tasks", "acc", "bwt", "worst_drop", "bytes_up", "bytes_down", "bytes_once"):
        assert found[name] == expected[name]
    assert (extended_run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("point", "number"), [pytest.param(*point, marks=() if point in FAST else pytest.mark.slow) for point in POINTS]
)
def test_an_extension_killed_at_any_point_resumes_to_the_same_result(
    fork: Fork, finished_run: Path, extended_run: Path, tmp_path: Path, point: str, number: int
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished_run, folder)
    assert fork("extend", folder, "photo", kill_at=[point, number]).code == KILLED
    refused = fork("extend", folder, "hatch")
    assert refused.error_line == f"{folder}: the run is not finished; resume it first: fedspecial resume {folder}"
    outcome = fork("resume", folder)
    assert outcome.code == 0, outcome.stderr
    assert_same_run(folder, extended_run)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in methods.names() if not methods.find(name).all_domains])
def test_every_method_continues_a_killed_extension_to_the_model_of_the_whole_run(
    fork: Fork, tiny: list[str], tmp_path: Path, name: str
) -> None:
    settings = [part for part in tiny if not part.startswith(("domains=", "model=", "width="))]
    settings += [f"method={name}", "model=cnn", "width=4", *SMALL.get(name, ())]
    whole, folder = tmp_path / "whole", tmp_path / "run"
    assert fork("run", *settings, "domains=paper,neon,photo", f"out={whole}").code == 0
    assert fork("run", *settings, "domains=paper,neon", f"out={folder}").code == 0
    assert fork("extend", folder, "photo", kill_at=["training", 2]).code == KILLED
    outcome = fork("resume", folder)
    assert outcome.code == 0, outcome.stderr
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_an_extension_killed_before_it_was_recorded_has_changed_nothing(
    fork: Fork, finished_run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished_run, folder)
    before = contents(folder)
    assert fork("extend", folder, "photo", kill_at=["first settings", 1]).code == KILLED
    after = contents(folder)
    assert {name: content for name, content in after.items() if not name.endswith(".part")} == before
