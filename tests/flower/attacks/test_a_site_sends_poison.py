"""A registered site sends numbers, weights and test results that are meant to end or to spoil the federation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flower_fixtures import (
    SHORT,
    SITES,
    federate,
    finished,
    grid_of,
    modified,
    reasons_of,
    rounds_of,
    with_header,
    with_vector,
)
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fedspecial.core.events import of_kind, read_events
from fedspecial.core.vector import layout_of
from fedspecial.engine.checkpoint import load
from fedspecial.flower.app.wire import record_to_tensors, tensors_to_record
from fedspecial.flower.grid import Delivery
from fedspecial.models import build

pytestmark = pytest.mark.usefixtures("rendered", "unpictured")

NUMBERS: dict[str, dict[str, Any]] = {
    "a loss that is not a number": {"loss": float("nan")},
    "an infinite loss": {"loss": float("inf")},
    "a loss of 1e200": {"loss": 1e200},
    "steps of 10^400": {"steps": 10**400},
    "samples of 10^400": {"samples": 10**400},
    "memory of 10^400": {"memory": 10**400},
    "a number of 10^400": {"numbers": {"max_grad": 10**400}},
    "an infinite number": {"numbers": {"max_grad": float("inf")}},
    "a long name": {"numbers": {"x" * 10_000: 1}},
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_number_that_is_not_finite_or_out_of_bounds_is_refused_with_the_sites_name(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = grid_of(tmp_path)
    grid.faults = {grid.get_node_ids()[2]: modified(with_header(**NUMBERS[kind]))}
    with caplog.at_level("WARNING", logger="fedspecial.flower"):
        run = federate(tmp_path, grid=grid, **SHORT)
    (name,) = NUMBERS[kind]
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        "site west: the header of the reply is invalid"
    ]
    assert f"({name}" in caplog.text
    (event,) = of_kind(read_events(run / "events.jsonl"), "round")
    assert event["num_accepted"] == 3


LAYOUT = layout_of(build("cnn", input_shape=(3, 8, 8), num_classes=10, width=4))
"""Of the model in these federations."""


class Changed:
    """The reply of one site to a training request, from a round on, with other changes of the weights or statistics.

    weights, means, variances: (change that training made, what was sent) → the change that is reported
    """

    def __init__(self, from_round: int = 0, **parts: Callable[[Tensor, Tensor], Tensor]) -> None:
        means, variances = LAYOUT.statistics
        places = {"weights": torch.arange(LAYOUT.num_weights), "means": means, "variances": variances}
        self._from, self._parts = from_round, [(places[name], change) for name, change in parts.items()]

    def __call__(self, request: Any, reply: Any) -> list[Delivery]:
        honest = request.metadata.message_type != "train"
        if honest or json.loads(request.content["config"]["request"])["round"] < self._from:
            return [Delivery(reply)]
        sent = record_to_tensors(request.content["arrays"])["theta"]

        def change(trained: Tensor) -> Tensor:
            assert len(trained) == LAYOUT.size
            for at, reported in self._parts:
                trained[at] = sent[at] + reported(trained[at] - sent[at], sent[at])
            return trained

        with_vector(change)(reply)
        return [Delivery(reply)]


def times(factor: float, from_round: int = 0) -> Changed:
    """An update whose weights are scaled."""
    return Changed(from_round, weights=lambda change, sent: factor * change)


def test_huge_weights_of_one_of_four_sites_are_refused_and_the_model_is_that_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "attacked").mkdir()
    attacked = grid_of(tmp_path / "attacked")
    attacked.faults = {attacked.get_node_ids()[1]: modified(with_vector(lambda v: torch.full_like(v, 1e30)))}
    run = federate(tmp_path / "attacked", grid=attacked, **SHORT)
    (tmp_path / "without").mkdir()
    without = grid_of(tmp_path / "without")
    without.faults = {without.get_node_ids()[1]: modified(with_header(loss=float("nan")))}
    other = federate(tmp_path / "without", grid=without, **SHORT)
    assert finished(run)["refusals"] == {"south": 1}
    (reason,) = reasons_of(run)["south"]
    assert "more than a million times the model's" in reason
    assert finished(run)["model_sha256"] == finished(other)["model_sha256"]
    assert [update["site"] for update in rounds_of(run)[0]["updates"]] == ["north", "west", "east"]


def test_an_update_far_above_the_median_of_the_round_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = grid_of(tmp_path)
    grid.faults = {grid.get_node_ids()[3]: times(-50)}
    with caplog.at_level("WARNING", logger="fedspecial.flower"):
        run = federate(tmp_path, grid=grid, **SHORT)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("site east: the update of 'theta' has norm ")
    assert message.endswith("the median of the updates of this round")
    assert rounds_of(run)[0]["refusals"] == [{"site": "east", "reason": message.removeprefix("site east: ")}]


STATISTICS: dict[str, tuple[dict[str, Any], str]] = {
    "huge variances": ({"variances": lambda change, sent: torch.full_like(sent, 1e5)}, "'theta statistics' has size "),
    "huge means": ({"means": lambda change, sent: torch.full_like(sent, -1e5)}, "'theta statistics' has size "),
    "negative variances": ({"variances": lambda change, sent: -2 * sent}, "'theta' has a negative running variance"),
    "tiny variances": ({"variances": lambda change, sent: 1e-3 - sent}, "'theta statistics' has size "),
}


@pytest.mark.parametrize("kind", STATISTICS)
def test_statistics_alone_that_would_spoil_the_model_are_refused_with_the_sites_name(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid, (parts, expected) = grid_of(tmp_path), STATISTICS[kind]
    grid.faults = {grid.get_node_ids()[3]: Changed(**parts)}
    with caplog.at_level("WARNING", logger="fedspecial.flower"):
        run = federate(tmp_path, grid=grid, **SHORT)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("site east: ")
    assert expected in message
    assert finished(run)["refusals"] == {"east": 1}


def test_with_three_sites_a_site_is_compared_with_its_own_last_updates(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, SITES[:3])
    grid.faults = {grid.get_node_ids()[0]: times(100.0, from_round=3)}
    run = federate(tmp_path, grid=grid, sites="north,south,west", domains="paper", rounds=4)
    rounds = rounds_of(run)
    assert [len(line["refusals"]) for line in rounds] == [0, 0, 0, 1]
    (refusal,) = rounds[3]["refusals"]
    assert refusal["site"] == "north"
    assert refusal["reason"].endswith("the median of the earlier round with the largest updates")  # above its own last
    saved = load(run / "checkpoint")
    assert saved is not None
    assert len(saved.update_norms["1/0/theta"]) == 3


def test_the_comparison_can_be_switched_off(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    grid.faults = {grid.get_node_ids()[3]: times(-50)}
    run = federate(tmp_path, grid=grid, **SHORT, norm_limit=0)
    assert finished(run)["refusals"] == {}


def test_a_billion_correct_predictions_of_one_site_do_not_make_the_matrix_all_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = grid_of(tmp_path)

    def boast(request: Any, reply: Any) -> list[Delivery]:
        if request.metadata.message_type == "evaluate":
            with_header(counts={"1": [10**9, 10**9]})(reply)
        return [Delivery(reply)]

    grid.faults = {grid.get_node_ids()[2]: boast}
    with caplog.at_level("WARNING", logger="fedspecial.flower"):
        run = federate(tmp_path, grid=grid, **SHORT)
    assert "site west: its test samples of task 1 count as 60 % (max_site_share)" in caplog.messages
    honest = json.loads((run / "promotion-history.json").read_text())["paper"]["paper"]
    correct, total = (sum(honest[site][at] for site in ("north", "south", "east")) for at in (0, 1))
    assert finished(run)["matrix"] == [[pytest.approx(0.6 + 0.4 * correct / total)]]


def test_a_model_that_only_guesses_is_not_published(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)

    def deny(request: Any, reply: Any) -> list[Delivery]:
        if request.metadata.message_type == "evaluate":
            with_header(counts={"1": [1, 100]})(reply)
        return [Delivery(reply)]

    grid.faults = dict.fromkeys(grid.get_node_ids(), deny)
    run = federate(tmp_path, grid=grid, **SHORT, above_chance=True)
    assert not (run / "published").exists()
    reason = json.loads((run / "promotion" / "task-1.json").read_text())["reason"]
    assert reason == (
        "not published: paper: accuracy is 1.00 %, no better than guessing one of 10 classes (above_chance)"
    )


HEADER = "{{'descr': '{}', 'fortran_order': False, 'shape': ({},), }} \n"
UPLOADS = {
    "another byte order": (np.dtype(np.float32).newbyteorder().str, "1", bytes(4)),
    "sides of 10^14": ("<f4", f"0, {10**14}, {10**14}", b""),
}


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("what", UPLOADS)
def test_an_upload_that_nobody_asked_for_does_not_end_the_run(what: str, kind: str, tmp_path: Path) -> None:
    dtype, sides, data = UPLOADS[what]
    text = HEADER.format(dtype, sides).encode()
    array = Array("", (), "", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data)
    grid = grid_of(tmp_path)

    def upload(request: Any, reply: Any) -> list[Delivery]:
        if request.metadata.message_type == kind:
            reply.content["uploads"] = ArrayRecord({"x": array})
        return [Delivery(reply)]

    grid.faults = {grid.get_node_ids()[2]: upload}
    run = federate(tmp_path, grid=grid, **SHORT)
    assert finished(run)["refusals"] == {"west": 1}
    assert len(rounds_of(run)[0]["updates"]) == (3 if kind == "train" else 4)


@pytest.mark.parametrize("name", ["intruder", ""])
def test_a_node_with_another_name_or_none_cannot_take_the_place_of_an_absent_site(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = grid_of(tmp_path, SITES, names=[*SITES[:3], name])
    with caplog.at_level("WARNING", logger="fedspecial.flower"):
        run = federate(tmp_path, grid=grid, **SHORT, wait_seconds=0.3)
    as_what = "as 'intruder'" if name else "without a name"
    node = name or grid.get_node_ids()[3]
    assert caplog.records[0].getMessage() == f"node {node} refused: it claims to be 'east', but is registered {as_what}"
    assert {update["site"] for update in rounds_of(run)[0]["updates"]} == {"north", "south", "west"}


def test_a_trial_without_keys_needs_a_policy_that_allows_it(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, SITES, names=[""] * 4)
    run = federate(tmp_path, grid=grid, **SHORT, allow_unregistered=True)
    assert len(rounds_of(run)[0]["updates"]) == 4


# A line of the log, a command to the terminal, and markup that a report would contain.
FORGED = "x\n2026-11-18 10:00:00 fedspecial INFO task 1: published\x1b[2J <script>alert(1)</script>"


def with_tensor(record: str) -> Any:
    def modify(reply: Any) -> None:
        tensors = record_to_tensors(reply.content[record]) if record in reply.content else {}
        reply.content[record] = tensors_to_record({**tensors, FORGED: torch.full((1,), float("nan"))})

    return modify


NAMES: dict[str, tuple[str, Any]] = {
    "an array": ("train", with_tensor("arrays")),
    "an upload": ("train", with_tensor("uploads")),
    "a problem": ("train", with_header(problem=FORGED)),
    "a number": ("train", with_header(numbers={FORGED: 1.0})),
    "a payload": ("train", with_header(missing=[FORGED])),
    "its version": ("train", with_header(release=FORGED)),
    "a task": ("evaluate", with_header(untested={FORGED: FORGED})),
    "a metric": ("evaluate", with_header(metrics={"1": {FORGED: 0.5}})),
    "itself": ("query.identify", with_header(site=FORGED)),
}


@pytest.mark.parametrize("what", NAMES)
def test_the_name_that_a_site_gives_to_something_cannot_forge_a_log_or_a_report(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid, (kind, change) = grid_of(tmp_path), NAMES[what]

    def forge(request: Any, reply: Any) -> list[Delivery]:
        if request.metadata.message_type == kind:
            change(reply)
        return [Delivery(reply)]

    grid.faults = {grid.get_node_ids()[2]: forge}
    with caplog.at_level("INFO", logger="fedspecial.flower"):
        run = federate(tmp_path, grid=grid, **SHORT, wait_seconds=0.3)
    assert [message for message in caplog.messages if "west" in message and ("refused" in message or "site" in message)]
    assert not [message for message in caplog.messages if not message.isprintable()]
    texts = [path for path in run.rglob("*") if path.is_file() and b"<script>" in path.read_bytes()]
    assert not texts
