"""An exception that a method raises on a client is reported with the client, task, round and batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedspecial import InputError
from fedspecial.core.messages import Broadcast, ServerState
from fedspecial.errors import ClientError
from fedspecial.methods.base import ClientContext, Exchange, Method, Query, QueryResult, ServerContext
from toy_problems import begin, play, rotated_blobs


class Failing(Method):
    """Fails on client 2 in the second batch of the second round of task 2."""

    def loss(self, context: ClientContext, x: Tensor, y: Tensor) -> Tensor:
        position = (context.client, context.broadcast.task, context.broadcast.round, context.batch)
        if position == (2, 2, 1, 2):
            raise ValueError("a bad\nvalue")
        return super().loss(context, x, y)


class FailingQuery(Method):
    def end_task(self, server: ServerState, context: ServerContext) -> Exchange:
        yield Query("count", lambda client: Broadcast(context.task, 0, {"theta": server.theta}))

    def answer_query(self, context: ClientContext, query: str) -> QueryResult:
        raise KeyError("samples")


class FailingPrediction(Method):
    def predict(self, context: ClientContext, x: Tensor) -> Tensor:
        raise RuntimeError("no prediction")


@dataclass(frozen=True)
class Refusing(Method):
    def begin_round(self, context: ClientContext) -> None:
        raise InputError("cache=0: give a positive number")


def run(folder: Path, method: Method, **settings: Any) -> None:
    settings = {"clients_per_round": 4, "eval_every": 0, "partition": "iid", **settings}
    play(begin(folder, "fedavg", rotated_blobs(tasks=2), method_object=method, **settings))


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Failing(), "client 2, task 2, round 2, batch 2: ValueError: a bad value"),
        (FailingQuery(), "client 0, task 1, query 'count': KeyError: 'samples'"),
        (FailingPrediction(), "client 0, task 1, prediction, batch 1: RuntimeError: no prediction"),
    ],
    ids=["training", "query", "prediction"],
)
def test_an_exception_on_a_client_names_client_task_round_and_batch(
    method: Method, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ClientError) as caught:
        run(tmp_path / "run", method)
    assert str(caught.value) == message
    assert caught.value.__cause__ is not None
    assert type(caught.value.__cause__).__name__ in message


def test_an_input_error_is_passed_on_unchanged(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^cache=0: give a positive number$"):
        run(tmp_path / "run", Refusing())
