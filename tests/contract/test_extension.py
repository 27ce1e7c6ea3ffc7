"""A run that is extended domain after domain equals, bit for bit, a run that knew all domains from the start."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fedspecial import Benchmark, Result, methods, resume
from fedspecial.core.events import EXECUTION_EVENTS, of_kind, read_events
from fedspecial.errors import InputError
from method_problems import problem_for
from toy_problems import extend, first, growing, images, learn, rotated_blobs

FAST = ("special", "srfdil", "pfeddil")
FEDERATED = [name for name in methods.names() if not methods.find(name).all_domains]
every_method = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in FEDERATED]
)

OF_TWO = ("run_started", "run_extended", "run_finished", *EXECUTION_EVENTS)


def extended(folder: Path, name: str, benchmark: Benchmark, start: int = 1, **settings: Any) -> Result:
    """The first domains in a run, and each further one in an extension of it."""
    result = learn(folder, name, first(benchmark, start), **settings)
    objects = {key: settings[key] for key in ("model",) if key in settings and not isinstance(settings[key], str)}
    for number, domain in enumerate(benchmark.domains[start:], start=start):
        result = extend(folder, domain, benchmark=first(benchmark, number), **objects)
    return result


def assert_equal_runs(found: Result, whole: Result, start: int = 1) -> None:
    """Same model, same costs and same numbers; None for what a run that began with `start` domains did not know."""
    assert found.model_sha256 == whole.model_sha256
    assert found.tasks == whole.tasks
    for name in ("acc", "bwt", "worst_drop", "forgetting", "drift", "lam", "rounds_to_best", "certificates"):
        assert getattr(found, name) == getattr(whole, name), name
    for name in ("bytes_up", "bytes_down", "bytes_once", "client_memory_bytes", "client_memory_paper_bytes"):
        assert getattr(found, name) == getattr(whole, name), name
    for row, (ours, theirs) in enumerate(zip(found.matrix, whole.matrix, strict=True)):
        known = max(start, row + 1)
        assert ours == [*theirs[:known], *[None] * (len(theirs) - known)]


def events_of(folder: Path) -> list[dict[str, Any]]:
    """What happened in all rounds and tasks; the rows of the matrix end with the domain that was just learned."""
    found = []
    for event in read_events(folder / "events.jsonl"):
        if event["event"] in OF_TWO:
            continue
        event = {key: value for key, value in event.items() if not key.startswith("seconds")}
        if event["event"] == "task_finished":
            event["accuracy"] = event["accuracy"][: event["task"]]
            event["metrics"] = {key: row[: event["task"]] for key, row in event["metrics"].items()}
            if event["accuracy_masked"] is not None:
                event["accuracy_masked"] = event["accuracy_masked"][: event["task"]]
        found.append(event)
    return found


@every_method
def test_extending_domain_after_domain_equals_the_whole_run(name: str, tmp_path: Path) -> None:
    benchmark, sizes = problem_for(name)
    whole = learn(tmp_path / "whole", name, benchmark, **sizes)
    found = extended(tmp_path / "run", name, benchmark, **sizes)
    assert_equal_runs(found, whole)
    assert found.notes == whole.notes  # not "not defined on d3", which was not known after d1
    assert events_of(tmp_path / "run") == events_of(tmp_path / "whole")


SETTINGS: dict[str, tuple[Benchmark, dict[str, Any]]] = {
    "no reset of the rate": (rotated_blobs(), {"client_lr_reset": False, "client_lr_decay": 0.9}),
    "bank": (images(tasks=3), {"model": "cnn", "width": 4, "batch_norm": "bank"}),
    "local statistics": (images(tasks=3), {"model": "cnn", "width": 4, "batch_norm": "local"}),
    "adam at the server": (rotated_blobs(), {"server_optimizer": "adam", "server_optimizer_reset": False}),
    "screened and robust": (rotated_blobs(), {"norm_limit": 5, "aggregation": "median"}),
    "differential privacy": (rotated_blobs(), {"dp_clip": 1.0, "dp_noise_multiplier": 0.5}),
    "estimates": (rotated_blobs(), {"estimate": True}),
    "workers": (rotated_blobs(), {"workers": 2}),
    "another partition": (rotated_blobs(), {"partition": "shards"}),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case == "workers" else ()) for case in SETTINGS]
)
def test_settings_that_last_over_tasks_last_over_an_extension(case: str, tmp_path: Path) -> None:
    benchmark, settings = SETTINGS[case]
    whole = learn(tmp_path / "whole", "special", benchmark, **settings)
    found = extended(tmp_path / "run", "special", benchmark, start=2, **settings)
    assert_equal_runs(found, whole, start=2)
    assert found.privacy == whole.privacy


@every_method
def test_a_rate_that_is_not_reset_goes_on_falling_in_an_extension(name: str, tmp_path: Path) -> None:
    benchmark, sizes = problem_for(name)
    sizes |= {"client_lr_reset": False, "client_lr_decay": 0.8, "rounds": 2}
    whole = learn(tmp_path / "whole", name, benchmark, **sizes)
    assert_equal_runs(extended(tmp_path / "run", name, benchmark, start=2, **sizes), whole, start=2)


@every_method
def test_a_class_incremental_run_is_extended_by_new_classes(name: str, tmp_path: Path) -> None:
    sizes = problem_for(name)[1] | {"model": "cnn", "width": 4}
    whole = learn(tmp_path / "whole", name, growing(), **sizes)
    found = extended(tmp_path / "run", name, growing(), **sizes)
    assert_equal_runs(found, whole)
    assert found.acc_masked == whole.acc_masked


@every_method
def test_an_extension_by_new_classes_that_was_killed_resumes_to_the_same_model(name: str, tmp_path: Path) -> None:
    """The folder is copied after a checkpoint in the middle of the extension, as a kill would leave it."""
    sizes = problem_for(name)[1] | {"model": "cnn", "width": 4, "rounds": 2}
    whole, run, killed = learn(tmp_path / "whole", name, growing(), **sizes), tmp_path / "run", tmp_path / "killed"

    def copy(event: Any) -> None:
        if event.event == "round" and (event.task, event.round) == (2, 1):
            shutil.copytree(run, killed)

    learn(run, name, first(growing(), 1), **sizes)
    extend(run, growing().domains[1], benchmark=first(growing(), 1), listeners=[copy])
    assert_equal_runs(resume(killed, benchmark=growing()), whole)


def test_classes_that_nobody_knew_at_the_start_can_be_appended(tmp_path: Path) -> None:
    benchmark, settings = growing(), {"model": "cnn", "width": 4}
    known = Benchmark("grows", benchmark.domains[:1], ("a", "b"), incremental="class")
    whole = learn(tmp_path / "whole", "special", benchmark, **settings)
    learn(tmp_path / "run", "special", known, **settings)
    found = extend(tmp_path / "run", benchmark.domains[1], benchmark=known, classes="abcd")
    assert_equal_runs(found, whole)


def test_a_network_for_a_fixed_number_of_classes_cannot_get_further_ones(tmp_path: Path) -> None:
    benchmark, sizes = growing(), problem_for("fedcil")[1]
    known = Benchmark("grows", benchmark.domains[:1], ("a", "b"), incremental="class")
    learn(tmp_path / "run", "fedcil", known, **sizes)
    with pytest.raises(InputError, match=r"method=fedcil: its network .* name all of them in `classes`"):
        extend(tmp_path / "run", benchmark.domains[1], benchmark=known, classes="abcd")


def test_a_model_given_as_an_object_is_given_again(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    whole = learn(tmp_path / "whole", "special", model=network)
    found = extended(tmp_path / "run", "special", rotated_blobs(), start=2, model=network)
    assert_equal_runs(found, whole, start=2)


def test_several_domains_at_once_equal_one_after_the_other(tmp_path: Path) -> None:
    benchmark = rotated_blobs()
    one_by_one = extended(tmp_path / "run", "special", benchmark)
    learn(tmp_path / "both", "special", first(benchmark, 1))
    both = extend(tmp_path / "both", benchmark.domains[1:], benchmark=first(benchmark, 1))
    assert both.model_sha256 == one_by_one.model_sha256
    assert [row.count(None) for row in both.matrix] == [2, 0, 0]
    assert [row.count(None) for row in one_by_one.matrix] == [2, 1, 0]


def test_each_extension_is_an_event_with_the_model_and_the_data(tmp_path: Path) -> None:
    start = learn(tmp_path / "run", "special", first(rotated_blobs(), 1))
    for number in (1, 2):
        extend(tmp_path / "run", rotated_blobs().domains[number], benchmark=first(rotated_blobs(), number))
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert of_kind(events, "run_started")[0]["tasks"] == ["d1"]
    told = of_kind(events, "run_extended")
    assert [(event["task"], event["tasks"], list(event["data_sha256"])) for event in told] == [
        (2, ["d2"], ["d2"]),
        (3, ["d3"], ["d3"]),
    ]
    assert told[0]["model_sha256"] == start.model_sha256
    assert len(of_kind(events, "run_finished")) == 1
