"""Every random draw has a name.

A stream is a function of (seed, purpose, task, round, client): who takes part and in which order data is seen
depend on nothing else, so all methods and all engines face the same federation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def stream_seed(seed: int, purpose: str, *keys: int | str) -> int:
    """A 128-bit number that names the stream."""
    name = "/".join(map(str, (seed, purpose, *keys)))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")


def stream(seed: int, purpose: str, *keys: int | str) -> np.random.Generator:
    """The generator of one purpose: ``stream(25, "batches", task, round, client)``."""
    return np.random.Generator(np.random.PCG64(stream_seed(seed, purpose, *keys)))


@contextmanager
def torch_stream(seed: int, purpose: str, *keys: int | str) -> Iterator[None]:
    """Torch's own generator (dropout, users' modules) follows a named stream inside, and is put back after."""
    before = torch.random.get_rng_state()
    torch.default_generator.manual_seed(stream_seed(seed, purpose, *keys) % 2**63)
    try:
        yield
    finally:
        torch.random.set_rng_state(before)


def choose(seed: int, task: int, round: int, clients: int, count: int) -> list[int]:
    """N of M clients, uniformly without replacement, in ascending order."""
    return sorted(int(c) for c in stream(seed, "participation", task, round).choice(clients, count, replace=False))
