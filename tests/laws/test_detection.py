"""Detecting tasks: the detectors, the decision of the federation, and how well it did; by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedspecial.cli.tables import detection_line
from fedspecial.config import Config
from fedspecial.core.events import of_kind, read_events
from fedspecial.core.messages import ServerState
from fedspecial.engine.detection import adwin, alarm_share, begin_task, begins_task, cusum, observe, page_hinkley
from fedspecial.metrics.detection import score_detection
from toy_problems import learn, rotated_blobs


def test_cusum_by_hand() -> None:
    """Losses 1, 1, 1, then a rise to 1.2: m = 1 and s is its floor 0.05, so S = 0.2/0.05 − 0.5 = 3.5."""
    assert cusum([1, 1, 1, 1.2], 3.4) == [False, False, False, True]
    assert cusum([1, 1, 1, 1.2], 3.6) == [False, False, False, False]
    # m = 1.06 and s² = 2·0.3·0.2² now, so S = 3.5 + 0.14/0.1549 − 0.5 = 3.90
    assert cusum([1, 1, 1, 1.2, 1.2], 3.8)[-1]
    assert not cusum([1, 1, 1, 1.2, 1.2], 4.0)[-1]


def test_a_loss_that_falls_raises_no_alarm_and_hides_none() -> None:
    falling = [2.3 * 0.7**k for k in range(10)]
    assert not any(cusum(falling, 5))
    assert cusum([*falling, 2.0], 5)[-1]


@pytest.mark.parametrize("detect", [adwin, page_hinkley])
def test_detectors_of_river_find_a_rise_and_no_fall(detect) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("river")
    threshold = 0.05 if detect is adwin else 1.0
    low, high = [0.2] * 15, [3.0] * 15
    assert any(detect(low + high, threshold)[15:])
    assert not any(detect(low, threshold))
    assert not any(detect(high + low, threshold))


def server_after(losses: dict[int, list[float]]) -> ServerState:
    """All clients took part in every round."""
    server = ServerState(theta=None)  # type: ignore[arg-type]
    for time in range(len(next(iter(losses.values())))):
        observe(server, time, {client: values[time] for client, values in losses.items()})
    return server


def test_half_of_the_clients_decide() -> None:
    calm, risen = [1.0] * 8, [1.0] * 7 + [9.0]
    config = Config(detect="loss", detect_pause=3)
    for raised, share in ((1, 0.25), (2, 0.5), (4, 1.0)):
        server = server_after({client: risen if client < raised else calm for client in range(4)})
        assert alarm_share(server, config, 7) == share
        assert begins_task(server, config, 7, share) == (share >= 0.5)
    begin_task(server, 8)
    assert (server.tasks_begun, server.first_losses) == (2, {})
    assert not begins_task(server, config, 10, 1.0)  # within the pause: rounds 8, 9 and 10
    assert begins_task(server, config, 11, 1.0)


def test_clients_that_did_not_take_part_lately_do_not_count() -> None:
    server = server_after({0: [1.0] * 7 + [9.0], 1: [1.0] * 8})
    observe(server, 11, {0: 9.0})
    assert alarm_share(server, Config(detect="loss"), 11) == 1.0


def test_delays_false_alarms_and_missed_borders_by_hand() -> None:
    """Three borders of 20 rounds: one found after the first round, one found late, one not within half a domain."""
    found = score_detection([20, 25, 43, 75], [20, 40, 60], rounds=80, per_domain=20)
    assert found.delays == [1, 4, None]
    assert found.false_alarms == [25, 75]
    assert found.false_alarms_per_100 == 2.5
    assert found.mean_delay == 2.5
    assert found.missed == 1


@pytest.mark.parametrize(
    ("delays", "false_alarms", "line"),
    [
        ([1, None, 3], [12], "borders detected: 2 of 3 (after 1, 3 rounds)   false alarms: 1 (2.5 per 100 rounds)"),
        ([None], [], "borders detected: 0 of 1   false alarms: 0 (0.0 per 100 rounds)"),
    ],
)
def test_detection_is_summarized_in_one_line(delays: list[int | None], false_alarms: list[int], line: str) -> None:
    rate = 100 * len(false_alarms) / 40
    found = {"delays": delays, "false_alarms": false_alarms, "false_alarms_per_100_rounds": rate}
    assert detection_line(found) == line


def test_in_a_blend_a_border_may_be_found_before_its_middle() -> None:
    assert score_detection([17], [20], rounds=40, per_domain=20, change_rounds=10).delays == [-2]
    assert score_detection([14], [20], rounds=40, per_domain=20, change_rounds=10).delays == [None]


def test_the_first_loss_is_the_loss_of_the_downloaded_model_and_costs_no_forward_pass(tmp_path: Path) -> None:
    """With one step per round the mean loss of a round is the loss of the first batch."""
    learn(tmp_path / "run", "fedavg", detect="loss", local_steps=1, local_epochs=None)
    for event in of_kind(read_events(tmp_path / "run" / "events.jsonl"), "round"):
        assert event["metrics"]["first_loss"] == pytest.approx(event["loss"], rel=1e-12)


def test_a_run_in_which_nothing_is_detected_has_one_task(tmp_path: Path) -> None:
    """γ_G stays 1 and the learning rate never starts again, although three domains are learned."""
    result = learn(tmp_path / "run", "special", lam=0.5, detect="loss", detect_threshold=1e9)
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert result.server_lrs == [1.0]
    assert result.drift is None
    assert [e["client_lr"] for e in of_kind(events, "round")] == pytest.approx([0.1 * 0.96**t for t in range(9)])
    assert result.detection is not None
    assert result.detection["missed_borders"] == 2


def test_sharp_borders_are_found_and_the_anchor_moves(tmp_path: Path) -> None:
    result = learn(
        tmp_path / "run",
        "special",
        rotated_blobs(tasks=2, rows=192),
        lam=0.1,
        rounds=10,
        clients_per_round=4,
        detect="loss",
        detect_pause=3,
    )
    assert result.detection is not None
    assert result.detection["delays"] == [1]
    assert result.detection["false_alarms"] == []
    assert result.drift is not None
