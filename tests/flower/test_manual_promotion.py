"""A model that the gate refused: the run stops, an operator decides, and the decision is audited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flower_fixtures import federate, finished
from typer.testing import CliRunner

from fedspecial.cli.main import app
from fedspecial.errors import InputError
from fedspecial.flower.governance import promotion
from fedspecial.flower.governance.audit import read_lines, verify
from fedspecial.flower.governance.promotion import Count, Decision, PromotionLimits, decide
from fedspecial.flower.ops.verify import verify_published
from fedspecial.ui.status import status_of

pytestmark = pytest.mark.usefixtures("rendered", "unpictured")


def cli(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["flower", *map(str, arguments)])


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate that refuses every model."""

    def refuse(*arguments: Any, **further: Any) -> Decision:
        return Decision(False, "not published: paper: too low", (), PromotionLimits())

    monkeypatch.setattr(promotion, "decide", refuse)


def test_a_decision_is_read_as_it_was_written() -> None:
    decision = decide(["a"], {"a": {"n": Count(1, 2)}}, {"a": {"n": Count(2, 2), "m": Count(1, 1)}})
    assert Decision.of_json(decision.as_json()) == decision


def test_the_run_stops_until_the_model_is_promoted_and_then_ends_as_if_it_had_continued(
    strict: None, tmp_path: Path
) -> None:
    going_on = finished(federate(tmp_path / "other", on_refused_model="continue", rounds=1))
    with pytest.raises(InputError, match=r"the gate refused the model of task 1, so the run stops .* flower promote"):
        federate(tmp_path, rounds=1)
    run = tmp_path / "run"
    assert not (run / "published").exists()
    with pytest.raises(InputError, match="on_refused_model=stop"):  # starting it again does not help
        federate(tmp_path, rounds=1)
    assert "say why" in cli("promote", run, 1, "--reason", " ").output
    assert "no model of task 2 that the gate refused" in cli("promote", run, 2, "--reason", "x").output
    assert cli("promote", run, 1, "--reason", "the board\naccepts it").exit_code == 0
    assert [path for path in run.rglob("*") if path.stat().st_mode & 0o077] == []
    assert "is published already" in cli("promote", run, 1, "--reason", "again").output
    assert status_of(run)["gate"]["publish"]
    federate(tmp_path, rounds=1)
    assert finished(run)["model_sha256"] == going_on["model_sha256"]
    manual = [line for line in read_lines(run / "audit.jsonl") if line["event"] == "manual_promotion"]
    assert [(line["task"], line["reason"]) for line in manual] == [(1, "the board accepts it")]
    assert verify(run / "audit.jsonl", manual[0]["hash"]).intact
    found = verify_published(run / "published" / "task-1")
    assert not found.problems
    assert "it was published by hand, against the gate" in found.notes
    card = (run / "published" / "task-1" / "README.md").read_text()
    assert "published by hand: the board accepts it (the gate: not published: paper: too low)" in card
    assert (run / "refused" / "task-2" / "model.safetensors").exists()  # after the last task nothing has to stop


def test_the_policy_may_continue_from_a_refused_model(strict: None, tmp_path: Path) -> None:
    run = federate(tmp_path, rounds=1, on_refused_model="continue")
    assert (run / "finished.json").exists()
    assert not (run / "published").exists()
    with pytest.raises(InputError, match="on_refused_model=maybe: expected stop, continue"):
        federate(tmp_path / "x", on_refused_model="maybe")
