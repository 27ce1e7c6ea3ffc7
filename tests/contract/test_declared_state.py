"""A user's method gets resume, costs, the certificate and growing heads just by declaring its state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic.dataclasses import dataclass

from fedspecial import resume
from fedspecial.core.events import EXECUTION_EVENTS, RoundFinished, of_kind, read_events
from fedspecial.core.messages import ClientState, ServerState
from fedspecial.methods.base import ClientContext, Method, ServerContext
from toy_problems import begin, growing, learn, play, rotated_blobs

ANCHORED = """
from pydantic.dataclasses import dataclass
from fedspecial import Method
from fedspecial.methods.base import StepReport


@dataclass(frozen=True)
class Anchored(Method):
    def begin_task(self, server, context):
        if context.task > 1:
            server.anchor = server.theta.clone()

    def server_step(self, server, mean, info):
        super().server_step(server, mean, info)
        if server.anchor is None:
            return StepReport()
        server.theta.lerp_(server.anchor, 0.2)
        return StepReport(lam=0.25, metrics={"pulls": 1})
"""


@pytest.fixture
def anchored(tmp_path: Path) -> str:
    (tmp_path / "anchored.py").write_text(ANCHORED)
    return f"{tmp_path / 'anchored.py'}:Anchored"


def without_times(folder: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in event.items() if not key.startswith("seconds")}
        for event in read_events(folder / "events.jsonl")
        if event["event"] not in EXECUTION_EVENTS
    ]


def test_an_anchor_and_a_reported_lambda_give_a_certificate(anchored: str, tmp_path: Path) -> None:
    result = learn(tmp_path / "run", anchored)
    assert result.certificates is not None
    assert [task["status"] for task in result.certificates] == ["not anchored", "holds", "holds"]
    assert result.lam == 0.25
    assert result.drift is not None
    rounds = of_kind(without_times(tmp_path / "run"), "round")
    assert [event["metrics"] for event in rounds] == [{}] * 3 + [{"pulls": 1}] * 6


def test_a_method_equal_to_special_learns_the_same_model(anchored: str, tmp_path: Path) -> None:
    ours, special = learn(tmp_path / "ours", anchored), learn(tmp_path / "special", "special", lam=0.25)
    assert ours.model_sha256 == special.model_sha256
    assert (ours.bytes_up, ours.bytes_down, ours.client_memory_bytes) == (
        special.bytes_up,
        special.bytes_down,
        special.client_memory_bytes,
    )


def test_a_method_with_declared_state_resumes_between_rounds_and_between_tasks(anchored: str, tmp_path: Path) -> None:
    uninterrupted = learn(tmp_path / "uninterrupted", anchored)
    for number, (task, round) in enumerate([(1, 2), (2, 0), (3, 1)]):

        def stop(event: Any, task: int = task, round: int = round) -> None:
            if isinstance(event, RoundFinished) and (event.task, event.round) == (task, round):
                raise KeyboardInterrupt

        folder = tmp_path / f"stopped{number}"
        with pytest.raises(KeyboardInterrupt):
            learn(folder, anchored, listeners=[stop])
        assert resume(folder, benchmark=rotated_blobs()).model_sha256 == uninterrupted.model_sha256
        assert without_times(folder) == without_times(tmp_path / "uninterrupted")


@dataclass(frozen=True)
class StoringMethod(Method):
    """Server and clients store a copy of the model, and another tensor of the same length."""

    def begin_task(self, server: ServerState, context: ServerContext) -> None:
        if context.task == 1:
            server.anchor = server.theta.clone()
            server.models["copy"] = server.theta.clone()
            server.tensors["same length"] = torch.zeros_like(server.theta)

    def end_round(self, context: ClientContext) -> None:
        if context.broadcast.task == 1:
            context.state.models["copy"] = context.broadcast.theta.clone()
            context.state.tensors["same length"] = torch.zeros_like(context.broadcast.theta)


@pytest.mark.parametrize("policy", ["average", "mean-only"])
def test_declared_models_grow_with_the_head_and_other_tensors_do_not(policy: str, tmp_path: Path) -> None:
    settings = {"model": "cnn", "width": 4, "clients_per_round": 4, "batch_norm": policy, "partition": "iid"}
    run = begin(tmp_path / "run", "fedavg", growing(), method_object=StoringMethod(), **settings)
    before = len(run.server.theta)
    play(run)
    after = len(run.server.theta)
    row = run.model.module.fc.in_features + 1  # type: ignore[union-attr,operator]
    assert after == before + 2 * row
    assert run.server.anchor is not None
    assert len(run.server.anchor) == len(run.server.models["copy"]) == after
    assert len(run.server.tensors["same length"]) == before
    for client in range(4):
        state: ClientState = run.engine.states.load(client)  # type: ignore[attr-defined]
        assert (len(state.models["copy"]), state.outputs) == (after, 4)
        assert len(state.tensors["same length"]) == before


def test_a_stored_model_keeps_its_old_head_rows_and_gets_the_new_rows_of_the_current_model(tmp_path: Path) -> None:
    settings = {"model": "cnn", "width": 4, "clients_per_round": 4, "rounds": 1, "partition": "iid"}
    run = begin(tmp_path / "run", "fedavg", growing(), method_object=StoringMethod(), **settings)
    layout, first = run.model.layout, run.server.theta.clone()
    play(run)
    old, new = dict(layout.named(first)), dict(run.model.layout.named(run.server.models["copy"]))
    assert torch.equal(new["fc.weight"][:2], old["fc.weight"])
    assert bool(new["fc.weight"][2:].abs().sum() > 0)
    assert all(torch.equal(new[name], old[name]) for name in old if not name.startswith("fc."))
