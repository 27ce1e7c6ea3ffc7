"""The Ray actors of a run, as its settings say."""

from __future__ import annotations

import math

from fedspecial.config import Config
from fedspecial.engine.pools import ray_cluster
from fedspecial.engine.pools.jobs import BuildRunner
from fedspecial.engine.pools.ray import ActorResources, RayPool
from fedspecial.runs.cores import available_cores


def ray_pool(config: Config, build: BuildRunner) -> RayPool:
    limit = config.workers if isinstance(config.workers, int) else config.clients
    # A Ray of our own gets as many CPUs as the user asks for, even if the machine has fewer cores.
    asked_for = math.ceil(config.workers * config.cpus_per_client) if isinstance(config.workers, int) else 0
    cluster = ray_cluster.connect(config.ray_address, cpus=max(available_cores(), asked_for))
    resources = ActorResources(config.cpus_per_client, config.gpus_per_client, config.threads)
    return RayPool(min(limit, config.clients), build, cluster, resources)
