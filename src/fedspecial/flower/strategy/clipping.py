"""Clipping that holds for every array: what leaves a site differs from the model by at most C.

    θ_c ← θ + (θ_c − θ)·min(1, C / ‖θ_c − θ‖)

The norm is over all floating-point arrays together, in float64, scalars included; an update of zero stays zero. The
bound holds up to the rounding of the weights' own type, since full weights travel.
Integer arrays (counters) are data of the site as well and have no norm that could be bounded: they go back to the
server's values. Flower's own clipping misses scalars and fails on integers and on zero updates.

At the site: ``ClientApp(mods=[clipping_mod(1.0)])``. At the server, where a site's word is not enough:

    SpecialStrategy(ClippedReplies(DifferentialPrivacyClientSideFixedClipping(FedAvg(), 1.0, C, n), C))

Noise and accountant are Flower's, over the clipped average; the anchor comes after both and costs no privacy.
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

from fedspecial.errors import InputError
from fedspecial.flower.app.arrays import Values, is_float, read, record_of, values_like, values_of

NORM_KEY = "clipping_norm"  # the word in which Flower's client-side privacy wrapper sends C

ClientFunction = Callable[[Message, Context], Message]


@dataclass(frozen=True)
class Clipped:
    """The clipped weights, the norm before, and whether it was above C."""

    values: Values
    norm: float
    was_clipped: bool


def update_norm(new: Mapping[str, NDArray[Any]], old: Mapping[str, NDArray[Any]]) -> float:
    """‖new − old‖ over all floating-point arrays."""
    squares = (float(np.sum(np.square(_difference(new[k], old[k])))) for k in old if is_float(old[k]))
    return math.sqrt(math.fsum(squares))


def clip(new: Mapping[str, NDArray[Any]], old: Mapping[str, NDArray[Any]], limit: float) -> Clipped:
    """`new`, moved towards `old` until the norm of the difference is at most `limit`."""
    _check_limit(limit)
    norm = update_norm(new, old)
    values = {}
    for name, before in old.items():
        if not is_float(before):
            values[name] = before
        elif norm <= limit:
            values[name] = new[name]
        else:
            moved = before + _difference(new[name], before) * (limit / norm)
            values[name] = np.asarray(moved, dtype=before.dtype)
    return Clipped(values, norm, norm > limit)


def clipping_mod(limit: float | None = None) -> Callable[[Message, Context, ClientFunction], Message]:
    """A client mod. `limit` is the site's own; where the server sends one too, the smaller holds.

    A reply with arrays beside the weights, which nothing bounds, does not leave the site: it becomes an error.
    """
    if limit is not None:
        _check_limit(limit)

    def mod(message: Message, context: Context, call_next: ClientFunction) -> Message:
        if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        said = [record.get(NORM_KEY) for record in message.content.config_records.values()]
        limits = [float(value) for value in (*said, limit) if isinstance(value, (int, float))]
        if not limits:
            raise InputError(f"{NORM_KEY}: neither this site nor the server has said how much may leave")
        received = values_of(_sent(message))
        reply = call_next(message, context)
        if not reply.has_error() and reply.content.array_records:
            _replace(reply, lambda record: clip(values_like(record, received), received, min(limits)).values)
        return reply

    return mod


class ClippedReplies(Strategy):
    """Clip every reply before `inner` sees it; counters stay as the server has them, also under `inner`'s noise."""

    def __init__(self, inner: Strategy, limit: float) -> None:
        _check_limit(limit)
        self.inner, self.limit = inner, limit
        self._theta: Values = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._theta = values_of(arrays)
        messages: Iterable[Message] = self.inner.configure_train(server_round, arrays, config, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        for reply in replies:
            if not reply.has_error():
                _replace(reply, lambda record: clip(values_like(record, self._theta), self._theta, self.limit).values)
        mean, metrics = self.inner.aggregate_train(server_round, replies)
        if mean is None:
            return None, metrics
        counters = {name: value for name, value in self._theta.items() if not is_float(value)}
        return record_of({name: counters.get(name, read(name, array)) for name, array in mean.items()}), metrics

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


def _sent(message: Message) -> ArrayRecord:
    """The model in a message from the server; our own engine may send payloads beside it, under another name."""
    record = message.content.array_records.get("arrays")
    return _only_record(message) if record is None else record


def _only_record(message: Message) -> ArrayRecord:
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise InputError(f"clipping: the message holds {len(records)} ArrayRecords, and one is needed")
    return records[0]


def _replace(reply: Message, change: Callable[[ArrayRecord], Values]) -> None:
    record = _only_record(reply)
    name = next(iter(reply.content.array_records))
    reply.content[name] = record_of(change(record))
