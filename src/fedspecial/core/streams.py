"""Every random draw has a name.

A stream is a function of (seed, purpose, task, round, client): who takes part and in which order data is seen
depend on nothing else, so they are the same for all methods and all engines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
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
    """Restore torch's own generators after the block; `seed_torch` may be used inside."""
    before = [(generator, generator.get_state()) for generator in _generators()]
    try:
        yield
    finally:
        for generator, state in before:
            generator.set_state(state)


def seed_torch(seed: int, purpose: str, *keys: int | str) -> None:
    """Seed torch's own generators with a named stream."""
    number = stream_seed(seed, purpose, *keys) % 2**63
    for generator in _generators():
        generator.manual_seed(number)


def _generators() -> list[torch.Generator]:
    """Torch's own generators: of the CPU, and of each GPU that is in use."""
    found = [torch.default_generator]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found += torch.cuda.default_generators
    if torch.backends.mps.is_built():
        found.append(torch.mps._get_default_mps_generator())
    return found


def sample_clients(seed: int, task: int, round: int, clients: int, count: int) -> list[int]:
    """N of M clients, uniformly without replacement, in ascending order."""
    return sorted(int(c) for c in stream(seed, "participation", task, round).choice(clients, count, replace=False))


def draw_others(
    seed: int, task: int, version: int, attempt: int, clients: int, excluded: Collection[int], count: int
) -> list[int]:
    """Up to `count` clients that are not excluded, uniformly without replacement, in random order. With nobody
    excluded, the first attempt (0) draws those of `sample_clients`."""
    keys = (task, version, attempt) if attempt else (task, version)
    free = clients - len(excluded)
    places = stream(seed, "participation", *keys).choice(free, min(count, free), replace=False)
    # The k-th free client is k plus the number of excluded ones before it.
    before = np.sort(np.fromiter(excluded, dtype=np.int64)) - np.arange(len(excluded))
    return [int(client) for client in places + np.searchsorted(before, places, side="right")]


def batch_order(seed: int, task: int, round: int, client: int) -> np.random.Generator:
    """The stream of the order in which a client sees its samples in a round."""
    return stream(seed, "batches", task, round, client)


def _name(*keys: int | str) -> bytes:
    return hashlib.sha256("/".join(map(str, keys)).encode()).digest()[:16]
