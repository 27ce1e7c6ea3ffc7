"""The connection to Ray: a Ray that is started for this run on 127.0.0.1, or one that is running already."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedspecial.errors import InputError

_LOOPBACK = "127.0.0.1"
_STORE_BYTES = 2 << 30
_SMALLEST_STORE_BYTES = 100 << 20


@dataclass
class RayCluster:
    """connected_here: this run made the connection, and ends it · warning: what the user should know about it"""

    ray: Any
    connected_here: bool
    warning: str | None = None

    def room_for(self, cpus: float, gpus: float) -> int:
        """How many actors with these resources the nodes have room for, other users of the cluster not counted."""
        return sum(_fitting(node.get("Resources", {}), cpus, gpus) for node in self._nodes())

    def describe_resources(self) -> str:
        nodes = [node.get("Resources", {}) for node in self._nodes()]
        return "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in nodes)

    def call_on_nodes(self, function: Callable[[], Any], seconds: float) -> list[tuple[str, Any]]:
        """The address of each node that has CPUs, and what the function returns there."""
        strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
        remote = self.ray.remote(num_cpus=0)(function)

        def call_on(node: dict[str, Any]) -> Any:
            affinity = strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            return remote.options(scheduling_strategy=affinity).remote()

        nodes = [node for node in self._nodes() if node.get("Resources", {}).get("CPU")]
        try:
            replies = self.ray.get([call_on(node) for node in nodes], timeout=seconds)
        except self.ray.exceptions.GetTimeoutError:
            raise InputError(f"engine=ray: the nodes of the Ray cluster do not answer within {seconds:g} s") from None
        return [(node["NodeManagerAddress"], reply) for node, reply in zip(nodes, replies, strict=True)]

    def close(self) -> None:
        """Shut down a Ray that this process started; disconnect from a cluster, which goes on running."""
        if self.connected_here:
            self.ray.shutdown()
            self.connected_here = False

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]


def connect(address: str | None, cpus: int) -> RayCluster:
    """The Ray that this process is connected to already; otherwise the one at `address`; otherwise a new one."""
    ray = _import_ray()
    if ray.is_initialized():
        return RayCluster(ray, connected_here=False)
    if address is None:
        _start(ray, cpus)
        return RayCluster(ray, connected_here=True)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise InputError(f"ray_address={address}: cannot connect to a Ray cluster there ({reason})") from None
    return RayCluster(ray, connected_here=True, warning=_warning(address))


def _import_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise InputError('engine=ray: Ray is not installed; install it with: pip install "fedspecial[ray]"') from None


def _start(ray: Any, cpus: int) -> None:
    with _environment(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled"), _only_loopback():
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=_store_bytes(),
            _node_ip_address=_LOOPBACK,
        )
    if any(node["NodeManagerAddress"] != _LOOPBACK for node in ray.nodes()):
        ray.shutdown()
        raise InputError(
            f"engine=ray: Ray {ray.__version__} does not stay on {_LOOPBACK}, so other machines could reach it; "
            "start Ray yourself and set ray_address=auto"
        )


@contextmanager
def _only_loopback() -> Iterator[None]:
    """On Linux, Ray replaces 127.0.0.1 by an address that other machines can reach, and listens on all interfaces. It
    does not where clusters are off, which is the default of macOS and Windows."""
    constants: Any = importlib.import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _store_bytes() -> int:
    """Ray's object store is in shared memory, of which containers often have little."""
    shared = Path("/dev/shm")
    free = shutil.disk_usage(shared).free // 2 if shared.exists() else _STORE_BYTES
    return max(_SMALLEST_STORE_BYTES, min(_STORE_BYTES, free))


def _warning(address: str) -> str | None:
    try:
        utils = importlib.import_module("ray._private.authentication.authentication_utils")
        if utils.is_token_auth_enabled():
            return None
    except (ImportError, AttributeError):
        pass
    return (
        f"ray_address={address}: this Ray cluster does not ask for a token; whoever can reach it can run code on it, "
        "so keep it in a closed network"
    )


def _fitting(node: dict[str, float], cpus: float, gpus: float) -> int:
    by_cpu = node.get("CPU", 0) // cpus
    return int(min(by_cpu, node.get("GPU", 0) // gpus) if gpus else by_cpu)
