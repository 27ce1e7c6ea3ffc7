"""Where a result comes from: the versions and the data behind it."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fedspecial
from fedspecial.core.batches import tensors_of
from fedspecial.core.messages import raw_bytes
from fedspecial.data.benchmark import Benchmark
from fedspecial.data.read_on_demand import NestedInputs
from fedspecial.data.samples import Domain


def versions() -> dict[str, str]:
    return {
        "fedspecial": fedspecial.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "machine": platform.machine(),
    }


def domain_hashes(benchmark: Benchmark) -> dict[str, str]:
    """Domain → hash of its samples and labels, in order: two runs with the same ones saw the same data.

    Of data sets that are read batch by batch, the number, shape and type of the inputs stand for the inputs.
    """
    return {domain.name: _sha256([domain]) for domain in benchmark.domains}


def data_sha256(benchmark: Benchmark) -> str:
    """One hash of all domains, as run directories of format 2 have it."""
    return _sha256(benchmark.domains)


def _sha256(domains: Sequence[Domain]) -> str:
    sha = hashlib.sha256()
    for domain in domains:
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
