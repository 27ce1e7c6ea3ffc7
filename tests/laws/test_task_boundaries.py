"""What the engine offers every method: queries at task boundaries, further networks, personal predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import nn

from fedspecial.core.events import of_kind, read_events
from fedspecial.core.messages import Broadcast, ServerState
from fedspecial.methods.base import ClientContext, Exchange, Method, Query, QueryResult, ServerContext, StepReport
from toy_problems import accuracy, begin, play, rotated_blobs


@dataclass(frozen=True)
class CountingMethod(Method):
    """At the end of each task, every client sends its number of samples and two clients get the total."""

    def end_task(self, server: ServerState, context: ServerContext) -> Exchange:
        counts = yield Query("count", lambda m: Broadcast(context.task, 0, {"theta": server.theta}))
        total = sum(int(result.numbers["samples"]) for result in counts.values())
        server.numbers[f"total{context.task}"] = total
        yield Query("total", lambda m: Broadcast(context.task, 0, {}, numbers={"total": total}), clients=[0, 2])

    def answer_query(self, context: ClientContext, query: str) -> QueryResult:
        if query == "count":
            return QueryResult({"mean": context.model.vector.mean()[None]}, {"samples": len(context.data)})
        context.state.numbers["total"] = context.broadcast.numbers["total"]
        return QueryResult()


@dataclass(frozen=True)
class WithNetwork(Method):
    """FedAvg with a further network, to whose weights each client adds its number."""

    def networks(self, problem: Any) -> dict[str, nn.Module]:
        return {"extra": nn.Linear(2, 1, bias=False)}

    def broadcast(self, server: ServerState, client: int, task: int, round: int) -> Broadcast:
        return Broadcast(task, round, {"theta": server.theta, "extra": server.tensors["extra"]})

    def end_round(self, context: ClientContext) -> None:
        context.networks["extra"].vector.add_(context.client)

    def server_step(self, server: ServerState, mean: Any, info: Any) -> StepReport:
        server.tensors["extra"].add_(mean["extra"])
        return super().server_step(server, mean, info)


@dataclass(frozen=True)
class TwoModels(Method):
    """Even clients train and predict with θ, odd clients with a second model."""

    personal: ClassVar[bool] = True

    def begin_task(self, server: ServerState, context: ServerContext) -> None:
        server.models.setdefault("odd", server.theta.clone())

    def _model_for(self, server: ServerState, client: int) -> dict[str, Any]:
        return {"odd": server.models["odd"]} if client % 2 else {"theta": server.theta}

    def broadcast(self, server: ServerState, client: int, task: int, round: int) -> Broadcast:
        model = self._model_for(server, client)
        return Broadcast(task, round, model, roles={"theta": next(iter(model))})

    def server_step(self, server: ServerState, mean: Any, info: Any) -> StepReport:
        for name, delta in mean.items():
            (server.theta if name == "theta" else server.models[name]).add_(delta)
        return StepReport()

    def eval_broadcast(self, server: ServerState, client: int, task: int) -> Broadcast:
        return self.broadcast(server, client, task, 0)


def prepared_run(folder: Path, method: Method, **settings: Any) -> Any:
    return begin(folder, "fedavg", rotated_blobs(tasks=2), method_object=method, **settings)


def test_every_client_replies_and_the_server_can_send_the_result_back(tmp_path: Path) -> None:
    run = play(prepared_run(tmp_path / "run", CountingMethod()))
    assert run.server.numbers["total1"] == run.server.numbers["total2"] == 96
    kept = [run.engine.states.load(client).numbers for client in range(4)]  # type: ignore[attr-defined]
    assert kept == [{"total": 96}, {}, {"total": 96}, {}]
    events = read_events(tmp_path / "run" / "events.jsonl")
    queries = of_kind(events, "query")
    assert [(q["task"], q["query"], q["queried"], q["replied"]) for q in queries] == [
        (1, "count", 4, 4), (1, "total", 2, 2), (2, "count", 4, 4), (2, "total", 2, 2),
    ]  # fmt: skip
    assert all(q["bytes_up"] > 0 and q["bytes_down"] > 0 for q in queries)
    assert [b["hook"] for b in of_kind(events, "task_boundary")] == ["end_task", "end_task"]


def test_queries_do_not_change_the_model(tmp_path: Path) -> None:
    with_queries, without = (
        play(prepared_run(tmp_path / "a", CountingMethod())),
        play(prepared_run(tmp_path / "b", Method())),
    )
    assert torch.equal(with_queries.vector, without.vector)


def test_a_query_result_that_is_not_finite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_query = CountingMethod.answer_query

    def with_nan(self: CountingMethod, context: ClientContext, query: str) -> QueryResult:
        result = answer_query(self, context, query)
        return QueryResult({"mean": torch.tensor([float("nan")])}, result.numbers) if context.client == 1 else result

    monkeypatch.setattr(CountingMethod, "answer_query", with_nan)
    play(prepared_run(tmp_path / "run", CountingMethod()))
    refused = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "update_refused")
    assert [(r["client"], r["round"], r["reason"]) for r in refused] == [(1, None, "'mean' contains NaN or Inf")] * 2


def test_further_networks_are_averaged_by_name(tmp_path: Path) -> None:
    run = prepared_run(tmp_path / "run", WithNetwork(), clients_per_round=4)
    before = run.server.tensors["extra"].clone()
    play(run)
    assert torch.allclose(run.server.tensors["extra"] - before, torch.full((2,), 1.5 * 6))  # mean of 0…3, six rounds


def test_clients_may_train_different_models(tmp_path: Path) -> None:
    run = play(prepared_run(tmp_path / "run", TwoModels(), server_lr=1.0))
    alone = play(prepared_run(tmp_path / "alone", Method(), server_lr=1.0))
    assert not torch.equal(run.server.models["odd"], run.server.theta)
    assert not torch.equal(run.vector, alone.vector)


def test_personal_accuracy_is_the_mean_over_clients(tmp_path: Path) -> None:
    run = play(prepared_run(tmp_path / "run", TwoModels(), server_lr=1.0))
    test = run.federation.domain(1).test
    even, odd = (accuracy(run, client, run.method.eval_broadcast(run.server, client, 2), test) for client in (0, 1))
    row = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "task_finished")[-1]["accuracy"]
    assert row[0] == pytest.approx((even + odd) / 2)
    assert even != odd
