"""What passes between server and clients, and what each side keeps: named tensors and numbers, nothing else.

Because nothing else exists, bytes and memory can be measured, runs resumed and messages sent to another machine
without a word from a method's author.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import safetensors
import safetensors.torch
import torch
from torch import Tensor

Number = int | float
Tensors = dict[str, Tensor]
Numbers = dict[str, Number]


@dataclass
class Broadcast:
    """Server to one client, in one round.

    vectors:  sent every round; always holds "theta"
    payloads: sent once: only to a client that does not hold that content yet (an anchor, a generator)
    """

    task: int
    round: int
    vectors: Tensors
    payloads: Tensors = field(default_factory=dict)
    numbers: Numbers = field(default_factory=dict)

    @property
    def theta(self) -> Tensor:
        return self.vectors["theta"]


@dataclass
class Update:
    """Client to server: how each vector of the broadcast changed, and how much work that took."""

    client: int
    deltas: Tensors
    steps: int
    samples: int
    loss: float
    numbers: Numbers = field(default_factory=dict)


@dataclass
class ServerState:
    """What the server keeps between rounds. `theta` is the part of the model that is averaged and anchored."""

    theta: Tensor
    tensors: Tensors = field(default_factory=dict)
    numbers: Numbers = field(default_factory=dict)


@dataclass
class ClientState:
    """What one client keeps between its rounds; it stays where the client is."""

    tensors: Tensors = field(default_factory=dict)
    numbers: Numbers = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.tensors or self.numbers)


def pack(tensors: Mapping[str, Tensor], numbers: Mapping[str, Number] | None = None) -> bytes:
    """Safetensors bytes. Numbers travel as 0-d tensors, so a message's size never depends on its values."""
    return safetensors.torch.save(_all_tensors(tensors, numbers or {}))


def unpack(data: bytes) -> tuple[Tensors, Numbers]:
    """Inverse of `pack`."""
    tensors, numbers = {}, {}
    for name, tensor in safetensors.torch.load(data).items():
        if name.startswith("#"):
            numbers[name[1:]] = tensor.item()
        else:
            tensors[name] = tensor
    return tensors, numbers


def packed_size(tensors: Mapping[str, Tensor], numbers: Mapping[str, Number] | None = None) -> int:
    """`len(pack(...))` without touching the data: it depends on names, types and shapes only."""
    everything = _all_tensors(tensors, numbers or {})
    signature = tuple((name, str(t.dtype), tuple(t.shape)) for name, t in sorted(everything.items()))
    return _header_size(signature) + sum(t.numel() * t.element_size() for t in everything.values())


def broadcast_size(message: Broadcast, *, held: frozenset[str] = frozenset()) -> int:
    """Bytes of a broadcast to a client that already holds the payloads named in `held`."""
    new = {name: t for name, t in message.payloads.items() if name not in held}
    return packed_size({**message.vectors, **new}, {"task": message.task, "round": message.round, **message.numbers})


def update_size(message: Update) -> int:
    numbers = {
        "client": message.client,
        "steps": message.steps,
        "samples": message.samples,
        "loss": message.loss,
    }
    return packed_size(message.deltas, {**numbers, **message.numbers})


def _all_tensors(tensors: Mapping[str, Tensor], numbers: Mapping[str, Number]) -> Tensors:
    scalars = {
        f"#{name}": torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)
        for name, value in numbers.items()
    }
    return {**tensors, **scalars}


@lru_cache(maxsize=256)
def _header_size(signature: tuple[tuple[str, str, tuple[int, ...]], ...]) -> int:
    """Length prefix plus JSON header, as safetensors writes it: larger types first, then by name, padded to 8."""
    codes = {
        "float32": "F32",
        "float64": "F64",
        "int64": "I64",
        "int32": "I32",
        "uint8": "U8",
        "bool": "BOOL",
    }
    codes |= {"float16": "F16", "bfloat16": "BF16", "int16": "I16", "int8": "I8"}
    rows = []
    for name, dtype, shape in signature:
        kind = dtype.removeprefix("torch.")
        width = torch.empty(0, dtype=getattr(torch, kind)).element_size()
        rows.append((-width, name, codes[kind], shape, width * int(torch.Size(shape).numel())))
    header, offset = {}, 0
    for _, name, code, shape, nbytes in sorted(rows, key=lambda row: (row[0], row[1])):
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    length = len(json.dumps(header, separators=(",", ":")).encode())
    return 8 + (length + 7) // 8 * 8
