"""Streams and detected tasks on Flower: the same model as in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flower_fixtures import SHORT, SITES, federate, finished, settings_of

from fedspecial.core.events import of_kind, read_events
from toy_problems import learn_settings

pytestmark = pytest.mark.usefixtures("rendered", "unpictured")

DETECTED = {"stream": "blended", "detect": "loss", "detect_threshold": 0.01, "detect_pause": 2}


@pytest.mark.parametrize("settings", [DETECTED, pytest.param({"stream": "recurring"}, marks=pytest.mark.slow)])
def test_the_model_is_that_of_one_process(settings: dict[str, Any], tmp_path: Path) -> None:
    run = federate(tmp_path, **{**SHORT, **settings})
    alone = learn_settings(tmp_path / "alone", **{**settings_of("special"), **SHORT, **settings}, clients=len(SITES))
    assert finished(run)["model_sha256"] == alone.model_sha256
    assert finished(run)["refusals"] == {}
    ours, theirs = (of_kind(read_events(f / "events.jsonl"), "round") for f in (run, tmp_path / "alone"))
    assert [event["metrics"] for event in ours] == [event["metrics"] for event in theirs]
    assert all(("first_loss" in event["metrics"]) == ("detect" in settings) for event in ours)
