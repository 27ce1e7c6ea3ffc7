"""The strategy on real processes: TLS, registered nodes, and a proxy that keeps the control interface private."""

from __future__ import annotations

import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import apps
import numpy as np
import pytest
from apps import MODEL, moving_app, nodes, record
from fleet_proxy import fleet_proxy
from flwr.serverapp.strategy import FedAvg

from fedspecial.flower import InProcessGrid, SpecialStrategy
from fedspecial.flower.ops.pki import make_authority, make_node_key, make_server_identity
from fedspecial.flower.ops.processes import LocalFederation

PROJECT = """
[project]
name = "moving"
version = "1.0.0"
description = "Clients whose every number is known"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"
[tool.flwr.app.config]
out = ""
"""

SERVER = """
from apps import MODEL, record
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from fedspecial.flower import SpecialStrategy

app = ServerApp()

@app.main()
def main(grid, context):
    inner = FedAvg(min_train_nodes=2, min_available_nodes=2, fraction_evaluate=0.0)
    strategy = SpecialStrategy(inner, lam=0.5, rounds_per_task=1, quorum=1.0, checkpoint=context.run_config["out"])
    strategy.start(grid, record(MODEL), num_rounds=2)
    assert sorted(strategy._names.values()) == ["north", "south"]
"""


def write_app(folder: Path) -> Path:
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "server_app.py").write_text(SERVER)
    (folder / "client_app.py").write_text("from apps import moving_app\n\napp = moving_app()\n")
    (folder / "apps.py").write_text(Path(apps.__file__).read_text())
    return folder


def strategy() -> SpecialStrategy:
    inner = FedAvg(min_train_nodes=2, min_available_nodes=2, fraction_evaluate=0.0)
    return SpecialStrategy(inner, lam=0.5, rounds_per_task=1)


@pytest.mark.slow
def test_real_processes_train_the_model_of_one_process(tmp_path: Path) -> None:
    """Bit for bit, over TLS and through a proxy that forwards nodes but not operators."""
    authority = make_authority(tmp_path / "keys")
    identity = make_server_identity(tmp_path / "keys", authority)
    keys = [make_node_key(tmp_path / "keys", name) for name in ("north", "south")]
    out = tmp_path / "state.safetensors"
    with LocalFederation(tmp_path, tls=identity) as federation:
        federation.start_superlink()
        with fleet_proxy(identity, federation.port) as port:
            for number, key in enumerate(keys):
                federation.register(key)
                federation.start_supernode(key.name, key=key, config={"partition-id": number}, proxy_port=port)
            federation.wait_for_nodes(["north", "south"], deadline=90)
            assert control_status(port, authority.certificate) == 403
            federation.start_run(write_app(tmp_path / "moving"), {"out": str(out)}).wait(180)
            assert federation.run_status() == "finished:completed", federation.last_lines("run", 60)

    whole = strategy()
    whole.start(InProcessGrid(moving_app(), nodes(2)), record(MODEL), num_rounds=2)
    real = strategy()
    real.load(out)
    assert all(np.array_equal(real.theta[name], whole.theta[name]) for name in MODEL)


@pytest.mark.slow
def test_a_run_needs_no_network_except_loopback(tmp_path: Path) -> None:
    """The test above, inside a network namespace that has only loopback."""
    alone = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    try:
        subprocess.run([*alone, "true"], check=True, capture_output=True, timeout=240)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("network namespaces cannot be made here")
    test = f"{__file__}::{test_real_processes_train_the_model_of_one_process.__name__}"
    command = [*alone, sys.executable, "-m", "pytest", "-m", "slow", "-p", "no:cacheprovider", test]
    done = subprocess.run([*command, f"--basetemp={tmp_path / 'inside'}"], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-4000:]


def control_status(port: int, authority: Path) -> int:
    context = ssl.create_default_context(cafile=str(authority))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(f"https://127.0.0.1:{port}/v1/control/list-nodes", data=b"", timeout=240) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
