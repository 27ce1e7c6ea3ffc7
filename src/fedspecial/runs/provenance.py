"""Where a result comes from: the versions and the data behind it."""

from __future__ import annotations

import hashlib
import platform
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fedspecial
from fedspecial.core.batches import tensors_of
from fedspecial.core.messages import raw_bytes
from fedspecial.data.benchmark import Benchmark
from fedspecial.data.read_on_demand import NestedInputs


def versions() -> dict[str, str]:
    return {
        "fedspecial": fedspecial.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "machine": platform.machine(),
    }


def data_sha256(benchmark: Benchmark) -> str:
    """Hash of every sample and label, in order: two runs with the same one saw the same data.

    Of data sets that are read batch by batch, the number, shape and type of the inputs stand for the inputs.
    """
    sha = hashlib.sha256()
    for domain in benchmark.domains:
        sha.update(domain.name.encode())
        for samples in (domain.train, domain.test):
            sha.update(_input_bytes(samples.x))
            sha.update(raw_bytes(samples.y))
    return sha.hexdigest()


def _input_bytes(x: Any) -> bytes | memoryview:
    if isinstance(x, Tensor):
        return raw_bytes(x)
    if isinstance(x, NestedInputs):
        return b"".join(raw_bytes(tensor) for tensor in tensors_of(x.parts))
    return f"{tuple(x.shape)} {x.dtype}".encode()
