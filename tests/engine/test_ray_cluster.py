"""Ray clusters: one that the run starts for itself, and one of two nodes that loses a node."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from worker_methods import Misbehaving

from fedspecial.core.events import of_kind, read_events
from fedspecial.engine.pools import ray_cluster
from fedspecial.errors import InputError
from toy_problems import learn

EVERYONE = {"clients": 4, "clients_per_round": 4, "partition": "iid"}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ray with its files in a folder of its own, which must have a short path: there are sockets in it."""
    ray = pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="r")
    for name, value in {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}.items():
        monkeypatch.setenv(name, value)
    yield ray
    shutil.rmtree(folder, ignore_errors=True)


def test_a_ray_that_was_started_for_a_run_is_shut_down_with_it(ray: Any, tmp_path: Path) -> None:
    expected = learn(tmp_path / "alone", "fedavg")
    assert learn(tmp_path / "run", "fedavg", engine="ray", workers=1).model_sha256 == expected.model_sha256
    assert not ray.is_initialized()


def test_a_cluster_that_is_not_there_gets_one_line(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Ray looks for any cluster on the machine, also for one of a test that runs at the same time and ends meanwhile.
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", set)
    with pytest.raises(InputError, match=r"^ray_address=auto: cannot connect to a Ray cluster there .*\)$"):
        ray_cluster.connect("auto", cpus=1)


@pytest.mark.slow
def test_a_node_lost_within_a_round_does_not_change_the_model(ray: Any, tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    expected = learn(tmp_path / "alone", "fedavg", **EVERYONE)
    occurrences = tmp_path / "occurrences"
    occurrences.mkdir()
    node = {"object_store_memory": 100 << 20}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **node}, shutdown_at_exit=False
    )
    nodes = [cluster.add_node(num_cpus=1, **node) for _ in range(2)]

    def remove_the_waiting_node() -> None:
        while not (files := [path for path in occurrences.iterdir() if path.read_text()]):
            time.sleep(0.1)
        cluster.remove_node(next(node for node in nodes if node.node_id == files[0].read_text()), allow_graceful=False)

    thread = threading.Thread(target=remove_the_waiting_node, daemon=True)
    thread.start()
    try:
        method = Misbehaving(how="wait", times=1, folder=str(occurrences))
        found = learn(tmp_path / "run", method, engine="ray", ray_address=cluster.address, **EVERYONE)
        assert not ray.is_initialized()
        assert len(cluster.list_all_nodes()) == 2
    finally:
        cluster.shutdown()
    thread.join()
    assert found.model_sha256 == expected.model_sha256
    recorded = read_events(tmp_path / "run" / "events.jsonl")
    (lost,) = of_kind(recorded, "worker_lost")
    assert (lost["job"], lost["attempt"]) == ("client 2, task 1, round 2", 1)
    (notice,) = of_kind(recorded, "engine_notice")
    assert "whoever can reach it can run code on it" in notice["text"]
