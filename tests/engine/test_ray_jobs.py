"""Whole runs of a comparison, a search or a study on Ray: the same results as on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedspecial
from fedspecial.core.events import of_kind, read_events
from fedspecial.engine.pools import ray_cluster
from fedspecial.engine.pools.ray_cluster import RayCluster
from fedspecial.errors import InputError
from fedspecial.runs.jobs import Job, run_missing

SMALL = {"rounds": 2, "cap": 60, "model": "logistic", "local_epochs": 1, "min_per_client": 1, "clients": 4}
SMALL |= {"clients_per_round": 2}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    pytest.importorskip("ray")
    cluster = ray_cluster.connect(None, cpus=2)
    yield cluster
    cluster.close()


def hashes(comparison: fedspecial.Comparison) -> dict[str, list[str]]:
    return {name: [result.model_sha256 for result in results] for name, results in comparison.results.items()}


def test_a_comparison_on_ray_has_the_results_of_a_local_one(cluster: RayCluster, tmp_path: Path) -> None:
    methods, seeds = ["special", "fedavg"], [25, 225]
    local = fedspecial.compare("digits-shift", methods, seeds, out=tmp_path / "local", **SMALL)
    spread = fedspecial.compare("digits-shift", methods, seeds, out=tmp_path / "ray", engine="ray", **SMALL)
    assert hashes(spread) == hashes(local)
    (started,) = of_kind(read_events(tmp_path / "ray" / "special-25" / "events.jsonl"), "engine_started")
    assert started["workers"] == 1  # the run is one Ray task, without actors of its own


def test_runs_with_a_number_of_workers_have_actors_of_their_own(cluster: RayCluster, tmp_path: Path) -> None:
    local = fedspecial.compare("digits-shift", ["fedavg"], [25], out=tmp_path / "local", **SMALL)
    spread = fedspecial.compare(
        "digits-shift", ["fedavg"], [25], out=tmp_path / "ray", engine="ray", workers=2, **SMALL
    )
    assert hashes(spread) == hashes(local)
    (started,) = of_kind(read_events(tmp_path / "ray" / "fedavg-25" / "events.jsonl"), "engine_started")
    assert started["workers"] == 2


def test_more_actors_than_the_cluster_has_room_for_are_refused(cluster: RayCluster, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^workers=3, cpus_per_client=1, .*the Ray cluster has no room for one run"):
        fedspecial.compare("digits-shift", ["fedavg"], [25], out=tmp_path, engine="ray", workers=3, **SMALL)


def test_a_failed_run_on_ray_is_reported_and_the_others_continue(cluster: RayCluster, tmp_path: Path) -> None:
    settings = {"benchmark": "digits-shift", "method": "fedavg", "engine": "ray", **SMALL}

    def job(name: str, **own: Any) -> Job:
        folder = tmp_path / name
        return Job("fedavg", 25, {**settings, "out": str(folder), **own}, folder)

    failures: list[tuple[str, str]] = []
    bad = job("bad", benchmark="folders", data=str(tmp_path / "nothing"))
    run_missing(
        [bad, job("good")], None, lambda: None, lambda job, error: failures.append((job.folder.name, str(error)))
    )
    ((name, message),) = failures
    assert name == "bad"
    assert "nothing" in message
    assert "\n" not in message
    assert (tmp_path / "good" / "result.json").exists()


def test_a_node_that_does_not_see_the_folder_of_the_runs_is_refused(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RayCluster, "call_on_nodes", lambda self, function, seconds: [("10.0.0.7", False)])
    with pytest.raises(InputError, match=r"^out=.*: the Ray node 10\.0\.0\.7 does not see this folder; whole runs"):
        fedspecial.compare("digits-shift", ["fedavg"], [25], out=tmp_path / "runs", engine="ray", **SMALL)
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.slow
def test_a_search_on_ray_chooses_what_a_local_one_chooses(cluster: RayCluster, tmp_path: Path) -> None:
    settings = SMALL | {"rounds": 1, "domains": ["paper", "neon"]}
    local = fedspecial.tune("digits-shift", out=tmp_path / "local", **settings)
    spread = fedspecial.tune("digits-shift", out=tmp_path / "ray", engine="ray", **settings)
    assert (spread.lam, spread.curve) == (local.lam, local.curve)


@pytest.mark.slow
def test_a_study_on_ray_has_the_results_of_a_local_one(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    command = [
        sys.executable,
        "-m",
        "fedspecial",
        "study",
        "main",
        "--scale",
        "tiny",
        "--seeds",
        "25",
        "--methods",
        "special",
    ]
    found = []
    for name, execution in (("local", []), ("ray", ["engine=ray"])):
        subprocess.run([*command, *execution, "--out", str(tmp_path / name)], check=True)
        (run,) = (tmp_path / name / "runs").iterdir()
        found.append((run.name, json.loads((run / "result.json").read_text())["model_sha256"]))
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "compare"])
def test_ctrl_c_ends_a_command_on_ray_and_its_processes(command: str, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    settings = [f"{key}={value}" for key, value in (SMALL | {"rounds": 500, "eval_every": 0}).items()]
    out = tmp_path / "out"
    own = {"run": ["method=fedavg", f"out={out}"], "compare": ["--methods=fedavg", "--seeds=25,225", f"--out={out}"]}
    arguments = [command, "digits-shift", *settings, "engine=ray", *own[command]]
    # A session of its own: a Ctrl-C on a terminal reaches every process of the group.
    process = subprocess.Popen(
        [sys.executable, "-m", "fedspecial", *arguments], start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    try:
        _wait_for_a_round(out, process)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    while _processes_of_session(process.pid):
        time.sleep(0.1)


def _wait_for_a_round(folder: Path, process: subprocess.Popen[str]) -> None:
    while not any('"event": "round"' in path.read_text() for path in folder.rglob("events.jsonl")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)


def _processes_of_session(session: int) -> list[int]:
    """Processes of the session that are still running; zombies, which only wait to be collected, do not count."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found
