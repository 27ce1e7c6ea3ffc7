"""`fedspecial flower rollback`: back to an earlier round, on record, and on to the same model again."""

from __future__ import annotations

from pathlib import Path

import pytest
from flower_fixtures import SHORT, federate, finished, rounds_of
from typer.testing import CliRunner

from fedspecial.cli.main import app
from fedspecial.core.events import of_kind
from fedspecial.engine import checkpoint as checkpoints
from fedspecial.engine.checkpoint import Position
from fedspecial.errors import InputError
from fedspecial.flower.app.rollback import parse_position, roll_back
from fedspecial.flower.governance.audit import read_lines, verify

pytestmark = pytest.mark.usefixtures("rendered", "unpictured")


@pytest.mark.parametrize("method", ["special", "flwf2t"])
def test_after_a_rollback_the_run_ends_with_the_same_model(method: str, tmp_path: Path) -> None:
    """Two tasks of two rounds, back to the state after the first round of task 1.

    FLwF-2T has client states: the sites still have those of the earlier round.
    """
    run = federate(tmp_path, method, keep_checkpoints=9)
    before = finished(run)
    done = CliRunner().invoke(app, ["flower", "rollback", str(run), "--to", "1/1", "--reason", "a wrong  label"])
    assert done.exit_code == 0, done.output
    assert not (run / "finished.json").exists()
    assert not list((run / "published").iterdir())
    assert len(list((run / "withdrawn").iterdir())) == 2
    again = federate(tmp_path, method, keep_checkpoints=9)
    assert again == run
    assert finished(run)["model_sha256"] == before["model_sha256"]
    assert finished(run)["matrix"] == before["matrix"]
    assert [(line["task"], line["round"], line["attempt"]) for line in rounds_of(run)] == [
        *((1, 0, 1), (1, 1, 1), (2, 0, 1), (2, 1, 1)),
        *((1, 1, 2), (2, 0, 2), (2, 1, 2)),
    ]
    (line,) = of_kind(read_lines(run / "audit.jsonl"), "rollback")
    assert (line["from"], line["to"], line["reason"]) == ("3/0", "1/1", "a wrong label")
    assert line["withdrawn"] == ["task-1", "task-2"]
    assert verify(run / "audit.jsonl").intact
    assert (run / "published" / "task-2" / "model.safetensors").exists()


def test_only_kept_rounds_can_be_reached_and_their_number_is_bounded(tmp_path: Path) -> None:
    run = federate(tmp_path, **{**SHORT, "rounds": 4}, keep_checkpoints=2)
    kept = checkpoints.history(run / "checkpoint")
    assert list(kept) == [Position(1, 4), Position(2, 0)]
    needed = {blob for found in checkpoints.kept(run / "checkpoint") for blob in found.blobs()}
    assert {path.name for path in (run / "checkpoint" / "blobs").iterdir()} == needed
    log = (run / "audit.jsonl").read_bytes()
    for to, complaint in (("1/1", "there is no checkpoint of it; kept are: 1/4, 2/0"), ("2/0", "is there already")):
        with pytest.raises(InputError, match=complaint):
            roll_back(run, parse_position(to), "why not")
    with pytest.raises(InputError, match="--reason"):
        roll_back(run, Position(1, 4), " ")
    with pytest.raises(InputError, match="expected TASK/ROUND"):
        parse_position("2-3")
    assert (run / "audit.jsonl").read_bytes() == log
    assert finished(run)


def test_a_rolled_back_round_is_charged_again(tmp_path: Path) -> None:
    settings = {**SHORT, "rounds": 2, "clients_per_round": 3, "dp_clip": 1, "dp_noise_multiplier": 2}
    run = federate(tmp_path, **settings)
    roll_back(run, Position(1, 1), "again")
    federate(tmp_path, **settings)
    charges = of_kind(read_lines(run / "audit.jsonl"), "privacy")
    assert [(line["round"], line["releases"]) for line in charges] == [(0, 1), (1, 2), (1, 3)]
    assert charges[2]["epsilon"] > charges[1]["epsilon"]
