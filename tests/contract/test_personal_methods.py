"""Accuracy of methods whose clients predict differently: the mean over clients, with numbers computed by hand.

The model has one weight per class and every input is 1, so it predicts the class with the larger weight. Three of four
test samples are of class 0: predicting class 0 gives 3/4, predicting class 1 gives 1/4. Client 0 predicts class 0 and
clients 1 to 3 predict class 1, so the mean is (3/4 + 3 · 1/4)/4 = 3/8.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedspecial import Benchmark, Domain
from fedspecial.core.events import of_kind, read_events
from fedspecial.core.messages import Broadcast, ServerState
from fedspecial.methods.base import ClientContext, Method
from toy_problems import begin, play

ZERO, ONE = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])


def weights_of(client: int) -> Tensor:
    return ZERO if client == 0 else ONE


@dataclass(frozen=True)
class OwnTheta(Method):
    """The server sends each client its own model to predict with, under the same name."""

    personal: ClassVar[bool] = True

    def eval_broadcast(self, server: ServerState, client: int, task: int) -> Broadcast:
        return Broadcast(task, 0, {"theta": weights_of(client).clone()})


@dataclass(frozen=True)
class OwnPayload(Method):
    """The server sends each client its own payload to predict with."""

    personal: ClassVar[bool] = True

    def eval_broadcast(self, server: ServerState, client: int, task: int) -> Broadcast:
        return Broadcast(task, 0, {"theta": server.theta}, {"own": weights_of(client).clone()})

    def predict(self, context: ClientContext, x: Tensor) -> Tensor:
        return x * context.broadcast.payloads["own"]


@dataclass(frozen=True)
class OwnModel(Method):
    """Each client predicts with a model in its state, as in Ditto."""

    personal: ClassVar[bool] = True

    def end_round(self, context: ClientContext) -> None:
        context.state.models["own"] = weights_of(context.client).clone()

    def predict(self, context: ClientContext, x: Tensor) -> Tensor:
        return x * context.state.models["own"]


@dataclass(frozen=True)
class OwnHead(Method):
    """Each client has its own head on top of the global model, as in FedRep."""

    personal: ClassVar[bool] = True

    def end_round(self, context: ClientContext) -> None:
        context.state.tensors["head"] = weights_of(context.client).clone()

    def predict(self, context: ClientContext, x: Tensor) -> Tensor:
        return 0 * context.model.module(x) + context.state.tensors["head"]


def problem() -> Benchmark:
    train = torch.ones(8, 1), torch.tensor([0, 1] * 4)
    test = torch.ones(4, 1), torch.tensor([0, 0, 0, 1])
    return Benchmark("ones", (Domain.of("a", train, test), Domain.of("b", train, test)), ("0", "1"), kind="table")


def rows_of_matrix(folder: Path, method: Method, **settings: Any) -> list[list[float]]:
    module = nn.Linear(1, 2, bias=False)
    run = begin(folder, "fedavg", problem(), module=module, method_object=method, clients_per_round=4, **settings)
    run.federation.rows = lambda task, client: np.array([client])  # type: ignore[method-assign]
    play(run)
    return [event["accuracy"] for event in of_kind(read_events(folder / "events.jsonl"), "task_finished")]


@pytest.mark.parametrize("method", [OwnTheta(), OwnPayload(), OwnModel(), OwnHead()], ids=lambda m: m.name)
def test_the_accuracy_of_a_personal_method_is_the_mean_over_clients(method: Method, tmp_path: Path) -> None:
    assert rows_of_matrix(tmp_path / "run", method) == [[0.375, 0.375], [0.375, 0.375]]


@pytest.mark.parametrize("method", [OwnTheta(), OwnModel()], ids=lambda m: m.name)
def test_curves_during_a_task_are_means_over_clients_too(method: Method, tmp_path: Path) -> None:
    rows_of_matrix(tmp_path / "run", method, eval_every=1)
    rounds = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "round")
    assert all(set(event["accuracy"].values()) == {0.375} for event in rounds)


def test_clients_with_the_same_message_and_state_are_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    predict = OwnTheta.predict

    def counted(self: OwnTheta, context: ClientContext, x: Tensor) -> Tensor:
        calls.append(context.client)
        return predict(self, context, x)

    monkeypatch.setattr(OwnTheta, "predict", counted)
    rows_of_matrix(tmp_path / "run", OwnTheta(), eval_every=0)
    assert calls == [0, 1] * 4  # two kinds of clients, two domains, after two tasks
