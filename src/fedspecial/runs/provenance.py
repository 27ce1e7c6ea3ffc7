"""Where a result comes from: the versions and the data behind it."""

from __future__ import annotations

import hashlib
import platform

import numpy as np
import torch

import fedspecial
from fedspecial.core.vector import raw_bytes
from fedspecial.data.benchmark import Benchmark


def versions() -> dict[str, str]:
    return {
        "fedspecial": fedspecial.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "machine": platform.machine(),
    }


def data_sha256(benchmark: Benchmark) -> str:
    """Hash of every sample and label, in order: two runs with the same one saw the same data."""
    sha = hashlib.sha256()
    for domain in benchmark.domains:
        sha.update(domain.name.encode())
        for samples in (domain.train, domain.test):
            sha.update(raw_bytes(samples.x))
            sha.update(raw_bytes(samples.y))
    return sha.hexdigest()
