"""`lam=auto`: λ follows from the curvature of the earlier tasks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedspecial import resume
from fedspecial.config import merge_settings, resolve
from fedspecial.core.events import RoundFinished, of_kind, read_events
from fedspecial.core.messages import ServerState
from fedspecial.errors import InputError
from fedspecial.methods.base import Method, RoundInfo
from fedspecial.methods.special import Special
from toy_problems import learn, rotated_blobs


def info(task: int, round: int, size: int, client_lr: float = 0.1) -> RoundInfo:
    layout = SimpleNamespace(num_weights=size)
    context: Any = SimpleNamespace(task=task, model=SimpleNamespace(layout=layout))
    return RoundInfo(task, round, 0.5, client_lr, 4.0, context=context)


def play_quadratic(
    curvature: float, rounds: int, size: int = 3, noise: float = 0.0, rate: float = 0.1, tasks: int = 1
) -> tuple[ServerState, float]:
    """Rounds on (h/2)·‖θ − 1‖² with one exact or noisy gradient each; returns the state and λ of the next task."""
    method, server = Special(lam="auto"), ServerState(torch.zeros(size))
    generator = torch.Generator().manual_seed(3)
    report = None
    for task in range(1, tasks + 2):
        method.begin_task(server, SimpleNamespace(task=task))  # type: ignore[arg-type]
        for round in range(rounds if task <= tasks else 1):
            step = info(task, round, size, rate)
            gradient = curvature * (server.theta - 1) + noise * torch.randn(size, generator=generator)
            delta: Tensor = -step.client_lr * step.mean_steps * gradient
            report = method.server_step(server, {"theta": delta}, step)
    assert report is not None
    assert report.lam is not None
    return server, report.lam


def test_on_a_quadratic_lambda_is_that_of_its_curvature() -> None:
    """h = 0.7: λ = γ_G·γ_L·steps·h = 0.5·0.1·4·0.7 = 0.14."""
    assert play_quadratic(0.7, rounds=6)[1] == pytest.approx(0.14, rel=1e-4)


def test_the_curvatures_of_all_earlier_tasks_are_added() -> None:
    assert play_quadratic(0.3, rounds=6, tasks=2)[1] == pytest.approx(2 * 0.2 * 0.3, rel=1e-3)


def test_noise_of_the_updates_does_not_count_as_curvature() -> None:
    """With noise as large as the signal, the naive secant y·s/s·s would find at least twice the curvature."""
    assert play_quadratic(0.2, rounds=12, size=40_000, noise=0.2)[1] == pytest.approx(0.04, rel=0.15)


def test_units_of_the_learning_rate_do_not_matter() -> None:
    """The same steps of the model with another rate give the same λ: γ_L cancels."""
    assert play_quadratic(0.7, rounds=6, rate=0.1)[1] == pytest.approx(play_quadratic(0.07, 6, rate=1.0)[1], rel=1e-4)


@pytest.mark.parametrize("rounds", [1, 2])
def test_without_evidence_lambda_is_the_default(rounds: int) -> None:
    assert play_quadratic(0.7, rounds=rounds)[1] == 0.1


def test_lambda_is_at_most_one() -> None:
    assert play_quadratic(4.0, rounds=4, tasks=3)[1] == 1.0


def test_it_needs_only_the_mean_of_the_updates() -> None:
    assert Special.needs_only_sum
    assert Special.receive is Method.receive
    assert Special.broadcast is Method.broadcast


def test_mu_is_refused() -> None:
    with pytest.raises(InputError, match=r"^lam=auto and mu=1 are both given; λ follows from μ, so give one$"):
        resolve(merge_settings({"benchmark": "digits-shift", "lam": "auto", "mu": 1.0}))


def test_a_misspelled_value_is_refused() -> None:
    with pytest.raises(InputError, match=r"^lam=automatic: "):
        resolve(merge_settings({"benchmark": "digits-shift", "lam": "automatic"}))


def test_privacy_needs_a_fixed_number_of_steps() -> None:
    private = {"benchmark": "digits-shift", "lam": "auto", "dp_clip": 1.0, "dp_noise_multiplier": 1.0}
    with pytest.raises(InputError, match=r"^lam=auto: not with differential privacy"):
        resolve(merge_settings(private))


def test_a_run_is_certified_and_resumes_to_the_same_model(tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if isinstance(event, RoundFinished) and (event.task, event.round) == (2, 2):
            raise KeyboardInterrupt

    settings = {"lam": "auto", "rounds": 5}
    whole = learn(tmp_path / "whole", "special", **settings)
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "stopped", "special", listeners=[stop], **settings)
    assert resume(tmp_path / "stopped", benchmark=rotated_blobs()).model_sha256 == whole.model_sha256
    assert [task["status"] for task in whole.certificates] == ["not anchored", "holds", "holds"]
    rounds = of_kind(read_events(tmp_path / "whole" / "events.jsonl"), "round")
    strengths = {(event["task"], event["lam"]) for event in rounds if event["task"] > 1}
    assert all(0 < lam <= 1 for _, lam in strengths)
    assert {lam for task, lam in strengths if task == 2} != {lam for task, lam in strengths if task == 3}
