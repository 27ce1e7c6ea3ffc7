"""Small Flower apps whose every number is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedspecial.flower.arrays import record_to_arrays

RNG = np.random.default_rng(7)
MODEL = {
    "weight": RNG.standard_normal((3, 4)).astype(np.float32),
    "scale": np.asarray(0.5, dtype=np.float32),
    "bias": RNG.standard_normal(5),
}
WITH_COUNTER = {**MODEL, "batches": np.asarray([3, 9], dtype=np.int64)}


def record(values: Mapping[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in values.items()})


def move(values: Mapping[str, Any], task: int, rnd: int, client: int) -> dict[str, Any]:
    """A client's training: move half-way to a point that depends on the client, the task and the round."""
    rng = np.random.default_rng([task, rnd, client])
    moved = {}
    for name, value in values.items():
        if value.dtype.kind == "f":
            moved[name] = np.asarray((value + rng.standard_normal(value.shape)) / 2, dtype=value.dtype)
        else:
            moved[name] = value + client
    return moved


def reply_with(message: Message, values: Mapping[str, Any], client: int, weight: float = 1) -> Message:
    metrics = MetricRecord({"num-examples": weight, "client-id": client, "loss": 0.5})
    return Message(RecordDict({"arrays": record(values), "metrics": metrics}), reply_to=message)


def moving_app(weights: Mapping[int, float] | None = None, mods: Any = None) -> ClientApp:
    app = ClientApp()

    @app.train(mods=mods)
    def train(message: Message, context: Context) -> Message:
        config: ConfigRecord = message.content["config"]
        client = int(context.node_config["partition-id"])
        values = record_to_arrays(message.content["arrays"])
        moved = move(values, int(config["task"]), int(config["task-round"]), client)
        return reply_with(message, moved, client, (weights or {}).get(client, 1))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "task": int(message.content["config"]["task"])})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def nodes(count: int) -> list[dict[str, int]]:
    return [{"partition-id": number} for number in range(count)]
