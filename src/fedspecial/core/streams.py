"""Every random draw has a name.

A stream is a function of (seed, purpose, task, round, client): who takes part and in which order data is seen
depend on nothing else, so they are the same for all methods and all engines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def stream_seed(seed: int, purpose: str, *keys: int | str) -> int:
    """A 128-bit number that names the stream."""
    return int.from_bytes(_name(seed, purpose, *keys), "little")


def stream(seed: int, purpose: str, *keys: int | str) -> np.random.Generator:
    """The generator of one purpose: ``stream(25, "batches", task, round, client)``."""
    # Equal to PCG64(stream_seed(...)), but faster: numpy need not split an int first.
    return np.random.Generator(np.random.PCG64(np.frombuffer(_name(seed, purpose, *keys), dtype="<u4")))


@contextmanager
def torch_stream(seed: int, purpose: str, *keys: int | str) -> Iterator[None]:
    """Inside the block, torch's own generator (dropout, users' modules) follows a named stream."""
    with preserve_torch_rng():
        seed_torch(seed, purpose, *keys)
        yield


@contextmanager
def preserve_torch_rng() -> Iterator[None]:
    """Restore torch's own generator after the block; `seed_torch` may be used inside."""
    before = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def seed_torch(seed: int, purpose: str, *keys: int | str) -> None:
    """Seed torch's own generator with a named stream."""
    torch.default_generator.manual_seed(stream_seed(seed, purpose, *keys) % 2**63)


def sample_clients(seed: int, task: int, round: int, clients: int, count: int) -> list[int]:
    """N of M clients, uniformly without replacement, in ascending order."""
    return sorted(int(c) for c in stream(seed, "participation", task, round).choice(clients, count, replace=False))


def _name(*keys: int | str) -> bytes:
    return hashlib.sha256("/".join(map(str, keys)).encode()).digest()[:16]
