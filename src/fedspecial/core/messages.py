"""The messages between server and clients, and the state that each side keeps: named tensors and numbers only.

Therefore bytes and memory can be measured, runs can be resumed and messages can be sent to another machine without any
work by the author of a method.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

import torch
from safetensors.torch import load as read_safetensors
from safetensors.torch import save as write_safetensors
from torch import Tensor

T = TypeVar("T")
Number = int | float
Tensors = dict[str, Tensor]
Numbers = dict[str, Number]

THETA = "theta"
"""The name of the classifier's vector in a message."""
BUFFERS = "buffers"
"""The name of the BatchNorm statistics in a message, where they are averaged apart from the weights."""


@dataclass
class Broadcast:
    """A message from the server to one client, in one round.

    task, round: when it is sent; tasks count from 1, rounds from 0
    vectors:  sent every round; a client that trains sends back how they changed
    payloads: sent once: only to a client that does not have this content yet (an anchor, a generator)
    roles:    network → the name of the vector that it is loaded with, where the two names differ ("theta" is the
              classifier); with it, clients may train different models
    numbers:  numbers for the method's client half
    """

    task: int
    round: int
    vectors: Tensors
    payloads: Tensors = field(default_factory=dict)
    numbers: Numbers = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)

    @property
    def theta(self) -> Tensor:
        """The classifier's vector."""
        return self.vector(THETA)

    def key(self, network: str) -> str:
        """The name of the vector that a network is loaded with."""
        return self.roles.get(network, network)

    def vector(self, network: str) -> Tensor:
        """The vector that a network is loaded with."""
        return self.vectors[self.key(network)]


@dataclass
class Update:
    """A message from a client to the server: how each vector of the broadcast changed, and after how much training.

    client:  the number of the client
    deltas:  trained minus received, for each vector of the broadcast
    steps, samples, loss: local steps, training samples and mean training loss
    numbers, uploads: numbers and tensors for the method's server half that are not averaged
    """

    client: int
    deltas: Tensors
    steps: int
    samples: int
    loss: float
    numbers: Numbers = field(default_factory=dict)
    uploads: Tensors = field(default_factory=dict)


@dataclass
class ServerState:
    """What the server keeps between rounds. Checkpoints contain all of it but `scratch`.

    theta:   the global model as one vector
    anchor:  the model that the server pulls `theta` towards; the drift and the certificates are measured from it
    models:  other vectors with the model's layout; when the head grows, they and the anchor grow with it
    per_weight: vectors with one number per weight, such as a curvature; entries of outputs that are new begin with 0
    optimizer: the moments of the server optimizer, over the weights of each model that it has stepped
    tensors, numbers: everything else that the method keeps, such as the vectors of `Method.networks`
    update_norms: norms of the last accepted updates of each client, with which new ones are compared (`norm_limit`)
    tasks_begun, task_began, first_losses: where tasks are detected, their number so far, the round of the stream in
             which the last one began, and since then for each client: round, loss of the first batch, round, loss, …
    scratch: vectors whose content is not needed any more, kept so that their memory is used again
    """

    theta: Tensor
    anchor: Tensor | None = None
    models: Tensors = field(default_factory=dict)
    per_weight: Tensors = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)
    numbers: Numbers = field(default_factory=dict)
    optimizer: Tensors = field(default_factory=dict)
    update_norms: dict[str, list[float]] = field(default_factory=dict)
    tasks_begun: int = 1
    task_began: int = 0
    first_losses: dict[str, list[float]] = field(default_factory=dict)
    scratch: Tensors = field(default_factory=dict)


@dataclass
class ClientState:
    """What one client keeps between its rounds; it stays on the client.

    models:  vectors with the model's layout; they are padded when the head has grown since they were stored
    tensors, numbers: everything else that the method keeps
    outputs: the number of outputs of the head when `models` were stored; the client runner sets it
    """

    models: Tensors = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)
    numbers: Numbers = field(default_factory=dict)
    outputs: int = 0

    def __bool__(self) -> bool:
        return bool(self.models or self.tensors or self.numbers)

    def to_bytes(self) -> bytes:
        """The state as a message: tensors and numbers, with the kind of each in its name."""
        marked = {f"model/{name}": vector for name, vector in self.models.items()}
        marked |= {f"tensor/{name}": tensor for name, tensor in self.tensors.items()}
        named = {f"number/{name}": value for name, value in self.numbers.items()}
        return pack(marked, {**named, "outputs": self.outputs})

    @staticmethod
    def from_bytes(data: bytes) -> ClientState:
        """Inverse of `to_bytes`; no bytes are an empty state."""
        if not data:
            return ClientState()
        tensors, numbers = unpack(data)
        outputs = int(numbers.pop("outputs"))
        return ClientState(
            _with_prefix("model/", tensors), _with_prefix("tensor/", tensors), _with_prefix("number/", numbers), outputs
        )


def _with_prefix(prefix: str, named: Mapping[str, T]) -> dict[str, T]:
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}


def pack(tensors: Mapping[str, Tensor], numbers: Mapping[str, Number] | None = None) -> bytes:
    """Safetensors bytes. Numbers are stored as 0-d tensors, so the size of a message never depends on its values."""
    return write_safetensors(_all_tensors(tensors, numbers or {}))


def unpack(data: bytes) -> tuple[Tensors, Numbers]:
    """Inverse of `pack`."""
    tensors, numbers = {}, {}
    for name, tensor in read_safetensors(data).items():
        if name.startswith("#"):
            numbers[name[1:]] = tensor.item()
        else:
            tensors[name] = tensor
    return tensors, numbers


def packed_size(tensors: Mapping[str, Tensor], numbers: Mapping[str, Number] | None = None) -> int:
    """`len(pack(...))` without reading the data: it depends on names, types and shapes only."""
    kinds = [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
    kinds += [(f"#{name}", _number_type(value), torch.Size()) for name, value in (numbers or {}).items()]
    return _size_of(tuple(kinds))


def broadcast_size(message: Broadcast, *, present: frozenset[str] = frozenset()) -> int:
    """Bytes of a broadcast to a client that already has the payloads named in `present`."""
    new = {name: t for name, t in message.payloads.items() if name not in present}
    numbers = {"task": message.task, "round": message.round, **message.numbers}
    return packed_size({**message.vectors, **new}, numbers) + sum(len(a) + len(b) for a, b in message.roles.items())


def update_size(message: Update) -> int:
    numbers = {
        "client": message.client,
        "steps": message.steps,
        "samples": message.samples,
        "loss": message.loss,
    }
    return packed_size({**message.deltas, **message.uploads}, {**numbers, **message.numbers})


def _all_tensors(tensors: Mapping[str, Tensor], numbers: Mapping[str, Number]) -> Tensors:
    scalars = {f"#{name}": torch.tensor(value, dtype=_number_type(value)) for name, value in numbers.items()}
    return {**tensors, **scalars}


def _number_type(value: Number) -> torch.dtype:
    return torch.int64 if isinstance(value, int) else torch.float64


# The names of types in safetensors, in the order in which it stores tensors.
_CODES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@lru_cache(maxsize=256)
def _size_of(kinds: tuple[tuple[str, torch.dtype, torch.Size], ...]) -> int:
    """Length prefix, JSON header as safetensors writes it (by type, then by name, padded to 8), data."""
    header, offset, order = {}, 0, list(_CODES)
    for name, dtype, shape in sorted(kinds, key=lambda kind: (order.index(kind[1]), kind[0])):
        end = offset + dtype.itemsize * shape.numel()
        header[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    length = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + (length + 7) // 8 * 8 + offset


def raw_bytes(tensor: Tensor) -> memoryview:
    """A tensor's bytes in contiguous order, without a copy where it is contiguous already."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]
