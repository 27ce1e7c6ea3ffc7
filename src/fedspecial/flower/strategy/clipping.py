"""Clipping of client updates over all arrays: a reply differs from the model that was sent by at most C.

    θ_c ← θ + (θ_c − θ)·min(1, C / ‖θ_c − θ‖)

The norm is taken over all floating-point arrays together, in float64 and including scalars. A zero update stays zero.
The bound holds up to rounding in the type of the weights, since clients send full weights. Integer arrays (counters)
depend on the client's data too, but have no meaningful norm, so they are reset to the server's values. Flower's own
clipping ignores scalars and fails on integer arrays and on zero updates.

At the client: ``ClientApp(mods=[clipping_mod(1.0)])``. At the server, if clients are not trusted to clip:

    SpecialStrategy(ClippedReplies(DifferentialPrivacyClientSideFixedClipping(FedAvg(), 1.0, C, n), C))

Noise and privacy accounting are Flower's and apply to the clipped average. The anchor is applied afterwards, which
costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedspecial.engine.aggregation.privacy import clip_factor
from fedspecial.errors import InputError
from fedspecial.flower.arrays import NamedArrays, arrays_to_record, is_float, read_array, record_to_arrays, reply_arrays

NORM_KEY = "clipping_norm"  # the key under which Flower's client-side privacy wrapper sends C

ClientFunction = Callable[[Message, Context], Message]


@dataclass(frozen=True)
class Clipped:
    """The clipped weights, the norm of the update before clipping, and whether it was above C."""

    arrays: NamedArrays
    norm: float
    was_clipped: bool


def update_norm(new: Mapping[str, NDArray[Any]], old: Mapping[str, NDArray[Any]]) -> float:
    """‖new − old‖ over all floating-point arrays."""
    squares = (float(np.sum(np.square(_difference(new[k], old[k])))) for k in old if is_float(old[k]))
    return math.sqrt(math.fsum(squares))


def clip(new: Mapping[str, NDArray[Any]], old: Mapping[str, NDArray[Any]], limit: float) -> Clipped:
    """Move `new` towards `old` until the norm of the difference is at most `limit`."""
    _check_limit(limit)
    norm = update_norm(new, old)
    arrays = {}
    for name, before in old.items():
        if not is_float(before):
            arrays[name] = before
        elif norm <= limit:
            arrays[name] = new[name]
        else:
            clipped = before + _difference(new[name], before) * clip_factor(norm, limit)
            arrays[name] = np.asarray(clipped, dtype=before.dtype)
    return Clipped(arrays, norm, norm > limit)


def clipping_mod(limit: float | None = None) -> Callable[[Message, Context, ClientFunction], Message]:
    """A Flower client mod. `limit` is the client's own limit; if the server sends one too, the smaller one applies.

    Arrays other than the weights cannot be bounded, so a reply that contains any is not sent: it becomes an error.
    """
    if limit is not None:
        _check_limit(limit)

    def mod(message: Message, context: Context, call_next: ClientFunction) -> Message:
        if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        requested = [record.get(NORM_KEY) for record in message.content.config_records.values()]
        limits = [float(value) for value in (*requested, limit) if isinstance(value, (int, float))]
        if not limits:
            raise InputError(f"{NORM_KEY}: neither the client nor the server has set a limit; give clipping_mod(limit)")
        received = record_to_arrays(_sent_model(message))
        reply = call_next(message, context)
        if not reply.has_error() and reply.content.array_records:
            _replace(reply, lambda record: clip(reply_arrays(record, received), received, min(limits)).arrays)
        return reply

    return mod


class ClippedReplies(Strategy):
    """Clip every reply before `inner` aggregates it; integer arrays keep the server's values, also under noise."""

    def __init__(self, inner: Strategy, limit: float) -> None:
        _check_limit(limit)
        self.inner, self.limit = inner, limit
        self._theta: NamedArrays = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._theta = record_to_arrays(arrays)
        messages: Iterable[Message] = self.inner.configure_train(server_round, arrays, config, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        for reply in replies:
            if not reply.has_error():
                _replace(reply, lambda record: clip(reply_arrays(record, self._theta), self._theta, self.limit).arrays)
        mean, metrics = self.inner.aggregate_train(server_round, replies)
        if mean is None:
            return None, metrics
        counters = {name: value for name, value in self._theta.items() if not is_float(value)}
        arrays = {name: counters.get(name, read_array(name, array)) for name, array in mean.items()}
        return arrays_to_record(arrays), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages: Iterable[Message] = self.inner.configure_evaluate(server_round, arrays, config, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.inner.summary()


def _difference(new: NDArray[Any], old: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(np.subtract(new, old, dtype=np.float64))


def _check_limit(limit: float) -> None:
    if not (math.isfinite(limit) and limit > 0):
        raise InputError(f"{NORM_KEY}={limit}: must be a finite number above 0")


def _sent_model(message: Message) -> ArrayRecord:
    """The model in a message from the server. Our own engine may send payloads in a second record."""
    record = message.content.array_records.get("arrays")
    return _only_record(message) if record is None else record


def _only_record(message: Message) -> ArrayRecord:
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise InputError(f"clipping: the message has {len(records)} ArrayRecords, but exactly one is supported")
    return records[0]


def _replace(reply: Message, change: Callable[[ArrayRecord], NamedArrays]) -> None:
    record = _only_record(reply)
    name = next(iter(reply.content.array_records))
    reply.content[name] = arrays_to_record(change(record))
