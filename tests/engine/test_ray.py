"""Ray actors: the same model as in one process, whatever happens to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from worker_methods import Misbehaving

import fedspecial
from fedspecial.core.events import Event, RoundFinished, of_kind, read_events
from fedspecial.engine.pools import ray_cluster
from fedspecial.engine.pools.ray_cluster import RayCluster
from fedspecial.errors import ClientError, InputError
from fedspecial.runs.jobs import settings_key
from resume.runs import result_events, without_times
from toy_problems import learn, rotated_blobs

EVERYONE = {"clients": 4, "clients_per_round": 4, "partition": "iid"}
LONG = {"method": "special", "lam": 0.3, "rounds": 12}
KILLED = f"""
import os
import signal
import sys
from pathlib import Path
from fedspecial.core.events import RoundFinished
from toy_problems import learn

def kill_all_processes(event):
    if isinstance(event, RoundFinished) and event.round == 3:
        os.killpg(0, signal.SIGKILL)

learn(Path(sys.argv[1]), workers=2, listeners=[kill_all_processes], **{LONG})
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """One Ray for the module: a run uses the Ray that its process is connected to, and leaves it running."""
    pytest.importorskip("ray")
    cluster = ray_cluster.connect(None, cpus=2)
    yield cluster
    cluster.close()


class StopError(Exception):
    pass


def stop_in_task_2(event: Event) -> None:
    if isinstance(event, RoundFinished) and (event.task, event.round) == (2, 1):
        raise StopError


def misbehaving(tmp_path: Path, how: str, times: int) -> Misbehaving:
    folder = tmp_path / "occurrences"
    folder.mkdir()
    return Misbehaving(how=how, times=times, folder=str(folder))


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return of_kind(read_events(folder / "events.jsonl"), kind)


@pytest.mark.parametrize(
    "method",
    ["special", pytest.param("srfdil", marks=pytest.mark.slow), pytest.param("pfeddil", marks=pytest.mark.slow)],
)
def test_ray_computes_the_same_run(method: str, cluster: RayCluster, tmp_path: Path) -> None:
    # wide enough that vectors go through the object store
    alone = learn(tmp_path / "alone", method, width=512)
    spread = learn(tmp_path / "spread", method, width=512, engine="ray")
    assert spread.model_sha256 == alone.model_sha256
    assert without_times(result_events(tmp_path / "spread")) == without_times(result_events(tmp_path / "alone"))
    assert [event["workers"] for event in events(tmp_path / "spread", "engine_started")] == [2]
    assert cluster.ray.is_initialized()


@pytest.mark.parametrize(
    ("how", "reason"), [("kill", "its process or its node has ended"), ("memory", "out of memory")]
)
def test_a_lost_actor_does_not_change_the_model(how: str, reason: str, cluster: RayCluster, tmp_path: Path) -> None:
    expected = learn(tmp_path / "alone", "fedavg", **EVERYONE)
    found = learn(tmp_path / "run", misbehaving(tmp_path, how, times=1), engine="ray", **EVERYONE)
    assert found.model_sha256 == expected.model_sha256
    (event,) = events(tmp_path / "run", "worker_lost")
    assert (event["job"], event["reason"], event["attempt"]) == ("client 2, task 1, round 2", reason, 1)


def test_a_client_that_loses_its_actor_three_times_ends_the_run(cluster: RayCluster, tmp_path: Path) -> None:
    with pytest.raises(ClientError, match=r"client 2, task 1, round 2: its Ray actor was lost 3 times.*resumed"):
        learn(tmp_path / "run", misbehaving(tmp_path, "kill", times=3), engine="ray", **EVERYONE)


def test_an_exception_in_an_actor_names_client_task_round_and_batch(cluster: RayCluster, tmp_path: Path) -> None:
    with pytest.raises(ClientError, match=r"^client 2, task 1, round 2, batch 2: KeyError: 'label'$"):
        learn(tmp_path / "run", misbehaving(tmp_path, "error", times=9), engine="ray", workers=1, **EVERYONE)


def test_a_run_killed_with_two_workers_and_resumed_with_one_is_finished_on_ray(
    cluster: RayCluster, tmp_path: Path
) -> None:
    expected = learn(tmp_path / "alone", **LONG)
    folder = tmp_path / "run"
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )
    assert process.returncode == -signal.SIGKILL
    assert not (folder / "result.json").exists()
    with pytest.raises(StopError):
        fedspecial.resume(folder, benchmark=rotated_blobs(), workers=1, listeners=[stop_in_task_2])
    found = fedspecial.resume(folder, benchmark=rotated_blobs(), engine="ray")
    assert found.model_sha256 == expected.model_sha256
    assert [event["workers"] for event in events(folder, "engine_started")] == [2, 1, 2]


def test_an_actor_that_no_node_has_room_for_gets_one_line(cluster: RayCluster, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^cpus_per_client=99, gpus_per_client=0: no node .*2 CPUs, 0 GPUs\)$"):
        learn(tmp_path / "run", "fedavg", engine="ray", cpus_per_client=99)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it looks into /proc")
def test_a_ray_of_our_own_cannot_be_reached_from_other_machines(cluster: RayCluster) -> None:
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":  # listening
                sockets[f"socket:[{fields[9]}]"] = fields[1].split(":")[0]
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    opened = {os.readlink(path) for child in children for path in Path(f"/proc/{child}/fd").iterdir() if path.exists()}
    addresses = {sockets[link] for link in opened & sockets.keys()}
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert addresses
    assert addresses <= loopback


def test_where_a_run_is_executed_is_not_part_of_its_identity() -> None:
    settings = {"benchmark": "digits-shift", "method": "fedavg"}
    execution = {"engine": "ray", "ray_address": "auto", "cpus_per_client": 2, "gpus_per_client": 0.25}
    assert settings_key({**settings, **execution}) == settings_key(settings)


def test_without_ray_one_line_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r'^engine=ray: Ray is not installed.*pip install "fedspecial\[ray\]"$'):
        learn(tmp_path / "run", "fedavg", engine="ray")
