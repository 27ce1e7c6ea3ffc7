"""Trackers read events: real libraries, offline. They continue when a run is resumed, and a broken one ends no run."""

from __future__ import annotations

import csv
import json
import logging
from pathlib import Path
from typing import Any

import pytest

import fedspecial
from fedspecial import InputError
from fedspecial.config import check_common, merge_settings
from fedspecial.core.events import RoundFinished, of_kind, read_events
from fedspecial.report import trackers
from toy_problems import learn, rotated_blobs

ROUNDS = 3  # of each of the three tasks


def rows_of(folder: Path) -> list[tuple[int, str, float]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [(int(step), name, float(value)) for step, name, value in list(csv.reader(file))[1:]]


def stop_after(task: int, round: int) -> Any:
    def listener(event: Any) -> None:
        if isinstance(event, RoundFinished) and (event.task, event.round) == (task, round):
            raise KeyboardInterrupt

    return listener


def test_a_csv_file_has_the_numbers_of_the_events(tmp_path: Path) -> None:
    learn(tmp_path / "run", "special", trackers=["csv"])
    events, rows = read_events(tmp_path / "run" / "events.jsonl"), rows_of(tmp_path / "run")
    losses = [(step, value) for step, name, value in rows if name == "loss"]
    assert losses == [(number, r["loss"]) for number, r in enumerate(of_kind(events, "round"), start=1)]
    ends = [(step, value) for step, name, value in rows if name == "after_task/d2"]
    assert ends == [(ROUNDS * e["task"], e["accuracy"][1]) for e in of_kind(events, "task_finished")]


def test_a_tracker_changes_neither_the_result_nor_the_identity_of_a_run(tmp_path: Path) -> None:
    plain, tracked = learn(tmp_path / "plain"), learn(tmp_path / "tracked", tracker="csv")
    assert plain.model_sha256 == tracked.model_sha256
    hashes = [
        json.dumps(
            [line for line in (tmp_path / name / "config.yaml").read_text().splitlines() if "settings_sha" in line]
        )
        for name in ("plain", "tracked")
    ]
    assert hashes[0] == hashes[1]


def test_the_rows_of_a_resumed_run_are_those_of_a_whole_one(tmp_path: Path) -> None:
    learn(tmp_path / "whole", trackers="csv")
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "stopped", trackers="csv", checkpoint_seconds=1000, listeners=[stop_after(2, 1)])
    fedspecial.resume(tmp_path / "stopped", benchmark=rotated_blobs())
    assert rows_of(tmp_path / "stopped") == rows_of(tmp_path / "whole")


def test_tensorboard_shows_every_round_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "run", "special", tracker="tensorboard", checkpoint_seconds=1000, listeners=[stop_after(2, 1)])
    fedspecial.resume(tmp_path / "run", benchmark=rotated_blobs())
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    rounds = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "round")
    points = [(point.step, pytest.approx(point.value, rel=1e-5)) for point in found.Scalars("loss")]
    assert points == [(number, r["loss"]) for number, r in enumerate(rounds, start=1)]


@pytest.mark.slow
def test_mlflow_continues_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "run", "special", tracker="mlflow", listeners=[stop_after(2, 1)])
    fedspecial.resume(tmp_path / "run", benchmark=rotated_blobs())
    client = mlflow.MlflowClient()
    (tracked,) = client.search_runs([client.get_experiment_by_name("fedspecial").experiment_id])
    assert tracked.info.status == "FINISHED"
    assert tracked.data.params["method"] == "special"
    assert {metric.step for metric in client.get_metric_history(tracked.info.run_id, "loss")} == set(range(1, 10))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    result = learn(tmp_path / "run", "special", tracker="wandb", rounds=1)
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert result.warnings == learn(tmp_path / "plain", "special", rounds=1).warnings


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trackio_stores_the_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skipped in a plain development set-up: trackio needs an older pillow than the one that reads the images there."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    learn(tmp_path / "run", "special", tracker="trackio", rounds=1)
    assert any((tmp_path / "trackio").iterdir())


class Broken:
    def log(self, step: int, values: Any) -> None:
        raise ConnectionError("no route to host")

    def finish(self) -> None:
        raise AssertionError("a tracker that failed is left alone")


def test_a_failing_tracker_warns_once_and_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from fedspecial.report.trackers import csv_

    monkeypatch.setattr(csv_, "start", lambda run: Broken())
    with caplog.at_level(logging.WARNING, logger="fedspecial"):
        result = learn(tmp_path / "run", trackers="csv")
    assert result.model_sha256 == learn(tmp_path / "plain").model_sha256
    stopped = [record.getMessage() for record in caplog.records if "tracker" in record.getMessage()]
    assert stopped == ["tracker csv stopped: ConnectionError: no route to host"]


def test_an_unknown_tracker_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"trackers=tensorbord: unknown tracker \(did you mean 'tensorboard'\?\)"):
        learn(tmp_path / "run", tracker="tensorbord")
    assert not (tmp_path / "run").exists()


def test_a_tracker_without_its_package_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="trackers=wandb: the package wandb is not installed"):
        learn(tmp_path / "run", tracker="wandb")


def test_one_word_or_several_name_the_trackers() -> None:
    for given in ({"tracker": "csv"}, {"trackers": "csv"}, {"trackers": ["csv"]}):
        assert check_common({"trackers": merge_settings(given)["trackers"]}).trackers == ("csv",)
    assert check_common({"trackers": "csv, tensorboard"}).trackers == ("csv", "tensorboard")
