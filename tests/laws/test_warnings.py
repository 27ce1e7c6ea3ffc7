"""What a run warns about at its end: derived from events; shown in result.json, the card, the log, the terminal."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedspecial
from fedspecial.report.comparison import markdown
from fedspecial.report.warnings import warnings_of
from toy_problems import learn, rotated_blobs


def started(task: int, majority: float | None = 0.1) -> dict[str, Any]:
    return {"event": "task_started", "task": task, "name": f"d{task}", "majority": majority}


def finished(task: int, *accuracy: float | None) -> dict[str, Any]:
    return {"event": "task_finished", "task": task, "name": f"d{task}", "accuracy": list(accuracy)}


def round_of(task: int, *, held: bool = False, lam: float | None = None, loss: float = 1.0) -> dict[str, Any]:
    return {"event": "round", "task": task, "held": held, "lam": lam, "loss": loss}


def refused(task: int, reason: str) -> dict[str, Any]:
    return {"event": "update_refused", "task": task, "round": 0, "client": 1, "reason": reason}


LEARNED = [started(1), round_of(1), finished(1, 0.9, 0.2), started(2), round_of(2), finished(2, 0.7, 0.8)]


def test_a_run_that_learned_has_no_warnings() -> None:
    assert warnings_of(LEARNED) == []


def test_a_task_near_the_share_of_its_most_frequent_class_was_not_learned() -> None:
    events = [started(1, 0.6), finished(1, 0.61)]
    (text,) = warnings_of(events)
    assert text.startswith("task 1 (d1) was not learned: accuracy 61.0 %")
    assert "60.0 %" in text
    assert warnings_of([started(1, 0.6), finished(1, 0.63)]) == []


def regression(*events: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"event": "run_started", "tasks": ["d1", "d2"], "metric": {"name": "r2"}}, *events]


def test_a_regression_that_is_no_better_than_the_mean_was_not_learned() -> None:
    missed = regression(started(1, None), round_of(1), finished(1, -201121.8))
    assert warnings_of(missed) == [
        "task 1 (d1) was not learned: R² -2.01e+05 after training on it, while always predicting the mean gives 0"
    ]
    assert warnings_of(regression(started(1, None), round_of(1), finished(1, 0.02))) == []


def test_a_regression_whose_loss_grows_has_diverged() -> None:
    events = regression(started(1, None), round_of(1), round_of(1, loss=1e8), finished(1, -1e15))
    assert warnings_of(events)[0].startswith("the training diverged: the loss of task 1 grew from 1 to 1e+08")


@pytest.mark.parametrize(("majority", "accuracy"), [(None, 0.1), (1.0, 1.0), (0.1, None)])
def test_nothing_is_said_where_the_share_or_the_accuracy_is_not_known(
    majority: float | None, accuracy: float | None
) -> None:
    assert warnings_of([started(1, majority), finished(1, accuracy)]) == []


def test_positive_backward_transfer_of_a_task_that_was_learned_later_is_explained() -> None:
    events = [started(1), finished(1, 0.1, 0.1), started(2), finished(2, 0.5, 0.9)]
    assert "BWT is higher than it should be: task 1 was learned only later, which counts as a gain" in warnings_of(
        events
    )


def test_without_anything_learned_there_is_nothing_to_forget() -> None:
    events = [started(1), finished(1, 0.1, 0.1), started(2), finished(2, 0.1, 0.1)]
    assert "BWT and worst drop say little: task 1 was not learned, so there was nothing to forget" in warnings_of(
        events
    )


def test_a_new_task_that_was_not_learned_under_a_pull_blames_lambda() -> None:
    tasks = [started(1), finished(1, 0.9, 0.1), started(2), round_of(2, lam=5.0), finished(2, 0.9, 0.1)]
    assert any(text.startswith("λ = 5 may be too strong: task 2") for text in warnings_of(tasks))
    tasks[3] = round_of(2)
    assert not any("λ" in text for text in warnings_of(tasks))


def test_held_rounds_and_refused_updates_are_counted() -> None:
    events = [*LEARNED, round_of(2, held=True), refused(2, "late"), refused(2, "late"), refused(1, "wrong size")]
    assert warnings_of(events) == [
        "1 of 3 rounds had too few usable updates and left the model as it was",
        "3 updates were refused; the most frequent reason (2): late",
    ]


def test_a_client_without_data_of_a_task_is_no_fault() -> None:
    assert warnings_of([*LEARNED, refused(1, "it holds no samples of this task")]) == []


def test_a_loss_that_grew_tenfold_in_a_task_that_was_not_learned_is_divergence() -> None:
    events = [started(1), round_of(1, loss=2.0), round_of(1, loss=1e6), finished(1, 0.1)]
    assert warnings_of(events)[0].startswith("the training diverged: the loss of task 1 grew from 2 to 1e+06")


def test_a_diverged_run_says_so_everywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="fedspecial"):
        result = learn(tmp_path / "run", "special", client_lr=1e20)
    assert result.warnings[0].startswith("the training diverged")
    assert any("was not learned" in text for text in result.warnings)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["warnings"] == result.warnings
    card = (tmp_path / "run" / "README.md").read_text()
    assert all(f"- {text}" in card for text in result.warnings)
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == result.warnings
    assert "warning (special, seed 25): the training diverged" in markdown({"special": [result]})
    assert fedspecial.resume(tmp_path / "run", benchmark=rotated_blobs()).warnings == result.warnings


def test_the_majority_share_is_that_of_the_test_labels(tmp_path: Path) -> None:
    from fedspecial.core.events import of_kind, read_events

    learn(tmp_path / "run", rounds=1)
    assert {e["majority"] for e in of_kind(read_events(tmp_path / "run" / "events.jsonl"), "task_started")} == {1 / 3}


def test_one_warning_is_not_counted_in_the_plural(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "fedavg")
    assert repr(replace(result, warnings=[])).endswith(")>")
    assert repr(replace(result, warnings=["a"])).endswith(", 1 warning>")
    assert repr(replace(result, warnings=["a", "b"])).endswith(", 2 warnings>")
