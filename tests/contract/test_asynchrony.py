"""Laws of asynchronous aggregation, for every method whose server step needs only the mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedspecial import methods, resume
from fedspecial.core.events import EXECUTION_EVENTS, RoundFinished, of_kind, read_events
from fedspecial.errors import InputError
from method_problems import problem_for
from toy_problems import learn

ASYNCHRONOUS = [name for name in methods.names() if methods.find(name).needs_only_sum]
RESTLESS: dict[str, Any] = {
    "mode": "async", "buffer": 2, "latency": "exponential", "drop_rate": 0.2, "availability": 0.9, "max_staleness": 3,
}  # fmt: skip


def run(folder: Path, name: str, **settings: Any) -> str:
    problem, sizes = problem_for(name)
    return learn(folder, name, problem, **{**sizes, **settings}).model_sha256


def events(folder: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in event.items() if not key.startswith("seconds")}
        for event in read_events(folder / "events.jsonl")
        if event["event"] not in EXECUTION_EVENTS
    ]


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_without_latency_and_with_a_full_buffer_it_is_the_synchronous_algorithm_bit_for_bit(
    name: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"eval_every": 2, "client_lr_decay": 0.5}
    run(tmp_path / "sync", name, **settings)
    run(tmp_path / "async", name, mode="async", buffer=3, **settings)
    found = [event for event in events(tmp_path / "async") if event["event"] != "server_step"]
    for event in of_kind(found, "certificate"):
        assert event["summary"].pop("asynchronous")["max_staleness"] == 0
    assert found == events(tmp_path / "sync")


@pytest.mark.parametrize("name", [name for name in methods.names() if name not in ASYNCHRONOUS])
def test_a_method_that_needs_more_than_the_mean_refuses(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^method={name}: not with mode=async") as refused:
        run(tmp_path / "run", name, mode="async")
    assert "\n" not in str(refused.value)


STOPPED = ("special", "special-c", "mfcl")  # a plain anchor, and methods with payloads; the others are like the first


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in STOPPED else pytest.mark.slow) for name in ASYNCHRONOUS]
)
def test_a_stopped_run_resumes_to_the_same_events(name: str, tmp_path: Path) -> None:
    """Stopped where updates of several versions are in flight; they are trained again from these versions."""

    def stop_at(task: int, round: int) -> Any:
        def listener(event: Any) -> None:
            if isinstance(event, RoundFinished) and (event.task, event.round) == (task, round):
                raise KeyboardInterrupt

        return listener

    sha = run(tmp_path / "whole", name, **RESTLESS)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped", name, **RESTLESS, listeners=[stop_at(1, 3)])
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "stopped", benchmark=problem_for(name)[0], listeners=[stop_at(3, 2)])
    assert resume(tmp_path / "stopped", benchmark=problem_for(name)[0]).model_sha256 == sha
    assert events(tmp_path / "stopped") == events(tmp_path / "whole")
    steps = of_kind(events(tmp_path / "whole"), "server_step")
    assert any(update["staleness"] for step in steps for update in step["updates"])


def test_worker_processes_give_the_same_run(tmp_path: Path) -> None:
    run(tmp_path / "here", "special", **RESTLESS)
    run(tmp_path / "there", "special", **RESTLESS, workers=2)
    assert events(tmp_path / "there") == events(tmp_path / "here")
