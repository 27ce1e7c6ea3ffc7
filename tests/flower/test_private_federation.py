"""Differential privacy in a real federation: noise that nobody can repeat, and every release charged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flower_fixtures import SHORT, federate, finished

from fedspecial.core.events import RoundFinished, of_kind, read_events
from fedspecial.core.privacy import PrivacyCharged
from fedspecial.errors import InputError
from fedspecial.flower.governance.audit import read_lines

pytestmark = pytest.mark.usefixtures("unpictured")
PRIVATE = {**SHORT, "rounds": 2, "clients_per_round": 3, "dp_clip": 1, "dp_noise_multiplier": 2}


def charges_of(run: Path) -> list[dict[str, Any]]:
    return of_kind(read_lines(run / "audit.jsonl"), "privacy")


def test_noise_comes_from_the_operating_system_and_not_from_the_seed(tmp_path: Path) -> None:
    runs = [federate(tmp_path / name, **PRIVATE) for name in ("a", "b")]
    assert finished(runs[0])["model_sha256"] != finished(runs[1])["model_sha256"]
    for run in runs:
        charges = charges_of(run)
        assert [line["releases"] for line in charges] == [1, 2]
        assert not charges[-1]["simulated"]
        card = (run / "published" / "task-1" / "README.md").read_text()
        assert f"- ε = {charges[-1]['epsilon']:.4g} at δ = 1e-05" in card
        assert "Not covered by ε: training loss" in card


def test_a_repeated_round_is_charged_again(tmp_path: Path) -> None:
    """The server is stopped after the noisy sum of round 2 and before its checkpoint: the round is repeated."""

    def stop(event: Any) -> None:
        if isinstance(event, RoundFinished) and event.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federate(tmp_path, **PRIVATE, listeners=(stop,))
    run = federate(tmp_path, **PRIVATE)
    charges = charges_of(run)
    assert [(line["round"], line["releases"]) for line in charges] == [(0, 1), (1, 2), (1, 3)]
    assert charges[2]["epsilon"] > charges[1]["epsilon"] > charges[0]["epsilon"]
    events = of_kind(read_events(run / "events.jsonl"), "privacy")
    assert [event["releases"] for event in events] == [1, 3]


def test_the_charge_is_in_the_audit_log_before_the_model_changes(tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if isinstance(event, PrivacyCharged):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federate(tmp_path, **PRIVATE, listeners=(stop,))
    lines = list(read_lines(tmp_path / "run" / "audit.jsonl"))
    assert lines[-1]["event"] == "privacy"
    assert not of_kind(lines, "round")


def test_a_repeated_round_may_use_up_the_budget(tmp_path: Path) -> None:
    """The noise is planned for two rounds; a third release would exceed ε, so the federation stops."""
    settings = {key: value for key, value in PRIVATE.items() if key != "dp_noise_multiplier"} | {"dp_epsilon": 20}

    def stop(event: Any) -> None:
        if isinstance(event, RoundFinished):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federate(tmp_path, **settings, listeners=(stop,))
    with pytest.raises(InputError, match="dp_epsilon=20: the privacy budget is used up after 2 rounds"):
        federate(tmp_path, **settings)
    assert charges_of(tmp_path / "run")[-1]["epsilon"] <= 20
