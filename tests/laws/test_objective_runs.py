"""Runs with other objectives than classification: what is learned, measured, refused and shown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedspecial
from fedspecial import Benchmark, Domain, InputError, methods
from fedspecial.cli.tables import matrix_table, result_line
from fedspecial.config import given_object, merge_settings, resolve
from fedspecial.core.events import RoundFinished, of_kind, read_events
from fedspecial.data.federation import Federation
from fedspecial.report.comparison import MeanStd, Summary
from fedspecial.runs.data import make_federation
from objective_problems import OWN, lines, squares, tags
from toy_problems import QUICK, learn, rotated_blobs

LINEAR: dict[str, Any] = {"model": "logistic", "width": None, "local_epochs": 6, "server_lr": 1.0}
NEEDS_CLASS_SCORES = {"fedcil", "flwf2t", "mfcl", "pfeddil", "srfdil"}


def test_regression_recovers_a_linear_function(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "special", lines(), objective="regression", lam=0.1, **LINEAR)
    assert result.objective == "regression"
    assert result.metric == {"name": "r2", "low": None, "high": 1.0}
    assert result.acc is not None
    assert result.acc > 0.99
    assert set(result.metrics) == {"rmse", "mae"}
    assert result.bwt == pytest.approx(result.matrix[1][0] - result.matrix[0][0])  # type: ignore[operator]


def test_a_small_convolution_learns_to_segment(tmp_path: Path) -> None:
    model = nn.Conv2d(1, 2, 3, padding=1)
    result = learn(tmp_path / "run", "fedavg", squares(), objective="segmentation", model=model, width=None)
    assert result.metric["name"] == "mean_iou"
    assert result.acc is not None
    assert result.acc > 0.8
    assert len(result.metrics["per_class_iou"][1][0]) == 2


def test_several_labels_per_sample_are_learned(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "fedprox", tags(), objective="multilabel", **LINEAR)
    assert result.metric["name"] == "auroc"
    assert result.acc is not None
    assert result.acc > 0.95


def test_an_own_objective_is_trained_measured_and_resumed(tmp_path: Path) -> None:
    whole = learn(tmp_path / "whole", "special-c", lines(), objective=OWN, **LINEAR)
    assert whole.matrix[0][0] is not None
    assert -1 < whole.matrix[0][0] < 0
    assert "largest" in whole.metrics

    def stop(event: Any) -> None:
        if isinstance(event, RoundFinished) and (event.task, event.round) == (2, 0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "stopped", "special-c", lines(), objective=OWN, listeners=[stop], **LINEAR)
    with pytest.raises(InputError, match=r"objective=absolute: this run was started with a Python object.*objective=…"):
        fedspecial.resume(tmp_path / "stopped", benchmark=lines())
    resumed = fedspecial.resume(tmp_path / "stopped", benchmark=lines(), objective=OWN)
    assert (resumed.model_sha256, resumed.matrix, resumed.metrics) == (whole.model_sha256, whole.matrix, whole.metrics)
    tested = fedspecial.evaluate(tmp_path / "whole", benchmark=lines(), objective=OWN)
    assert list(tested.values()) == whole.matrix[-1]


def test_methods_are_compared_on_an_own_objective(tmp_path: Path) -> None:
    settings: Any = {**QUICK, **LINEAR, "rounds": 1, "seeds": [25], "out": tmp_path / "runs"}
    table = fedspecial.compare(lines(), ["special", "fedavg"], objective=OWN, lam=0.1, **settings)
    again = fedspecial.compare(lines(), ["special", "fedavg"], objective=OWN, lam=0.1, **settings)
    assert table.results["special"][0].metric["name"] == "closeness"
    assert again.results == table.results
    assert f"{table.results['fedavg'][0].acc:.3f}" in str(table)


def test_an_own_objective_can_be_named_by_its_file(tmp_path: Path) -> None:
    file = Path(__file__).parents[1] / "objective_problems.py"
    named = learn(tmp_path / "named", "fedavg", lines(), objective=f"{file}:OWN", **LINEAR)
    given = learn(tmp_path / "given", "fedavg", lines(), objective=OWN, **LINEAR)
    assert named.model_sha256 == given.model_sha256
    assert named.matrix == given.matrix
    with pytest.raises(InputError, match=r"'lines' in .* is not an Objective"):
        learn(tmp_path / "x", "fedavg", lines(), objective=f"{file}:lines")


def test_a_named_objective_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(Path(__file__).parents[1] / "objective_problems.py", tmp_path / "mine.py")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    found = learn(tmp_path / "named", "fedavg", lines(), objective="mine.py:OWN", rounds=1, **LINEAR)
    monkeypatch.chdir(tmp_path / "elsewhere")
    tested = fedspecial.evaluate(tmp_path / "named", benchmark=lines())
    assert list(tested.values()) == found.matrix[-1]


@pytest.mark.parametrize(("objective", "benchmark"), [(OWN, lines()), ("segmentation", squares())], ids=["own", "sums"])
def test_worker_processes_give_the_same_metrics(objective: Any, benchmark: Benchmark, tmp_path: Path) -> None:
    model: Any = LINEAR if objective is OWN else {"model": nn.Conv2d(1, 2, 3, padding=1), "width": None}
    alone, two = (
        learn(tmp_path / str(n), "special", benchmark, objective=objective, workers=n, rounds=1, **_seeded(model))
        for n in (1, 2)
    )
    assert (alone.model_sha256, alone.matrix, alone.metrics) == (two.model_sha256, two.matrix, two.metrics)


def _seeded(settings: dict[str, Any]) -> dict[str, Any]:
    for parameter in settings["model"].parameters() if isinstance(settings["model"], nn.Module) else ():
        nn.init.constant_(parameter, 0.1)
    return settings


@pytest.mark.parametrize("name", methods.names())
def test_methods_that_need_class_scores_say_so(name: str) -> None:
    assert methods.find(name).needs_class_scores == (name in NEEDS_CLASS_SCORES)


@pytest.mark.parametrize("name", sorted(NEEDS_CLASS_SCORES))
def test_methods_that_need_class_scores_refuse_other_objectives(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"method={name}: it needs scores of classes.*not regression") as refused:
        learn(tmp_path / "run", name, lines(), objective="regression")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", sorted(set(methods.names()) - NEEDS_CLASS_SCORES))
def test_all_other_methods_learn_any_objective(name: str, tmp_path: Path) -> None:
    result = learn(tmp_path / "run", name, lines(), objective="regression", rounds=1, **LINEAR)
    assert result.acc is not None


def federation(benchmark: Benchmark, **settings: Any) -> Federation:
    settings = {"benchmark": given_object("test"), "objective": "regression", "clients": 4, **settings}
    return make_federation(resolve(merge_settings(settings)).config, benchmark)


def test_without_classes_the_partition_is_iid_by_default() -> None:
    rows = federation(lines().with_targets("values")).rows
    assert [len(rows(1, client)) for client in range(4)] == [16] * 4
    assert merge_settings({"objective": "regression"}).get("partition") is None
    assert resolve(merge_settings({"objective": "regression", "partition": "quantity"})).config.partition == "quantity"
    assert resolve(merge_settings({"objective": "classification"})).config.partition == "dirichlet"


def test_a_dirichlet_partition_without_classes_needs_a_column(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"partition=dirichlet: the targets of domain 'd1' are not classes.*"
    ) as refused:
        learn(tmp_path / "run", "fedavg", lines(), objective="regression", partition="dirichlet")
    assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match="partition_by=sex: domain 'd1' has no such column, only ward"):
        learn(tmp_path / "run", "fedavg", lines(), objective="regression", partition_by="sex")
    with pytest.raises(InputError, match="partition_by=ward: only for partition=dirichlet or shards"):
        learn(tmp_path / "run", "fedavg", lines(), objective="regression", partition_by="ward", partition="iid")


def test_a_column_divides_the_samples() -> None:
    benchmark = lines().with_targets("values")
    rows = federation(benchmark, partition_by="ward", alpha=0.01, min_per_client=0).rows
    wards = benchmark.domains[0].columns["ward"]
    owners = [{c for c in range(4) if ward in wards[rows(1, c)]} for ward in set(wards)]
    assert all(len(clients) <= 2 for clients in owners)  # a small alpha gives almost all of a ward to one client


def test_without_classes_the_holdout_is_drawn_from_all_samples() -> None:
    held = lines().with_targets("values").held_out(0.25, seed=25).domains[0]
    assert (len(held.train), len(held.test), len(held.columns["ward"])) == (48, 16, 48)


@pytest.mark.parametrize(
    ("objective", "targets", "message"),
    [
        ("multilabel", torch.full((8, 2), 0.5), "objective=multilabel needs 0 or 1 for each label"),
        ("multilabel", torch.zeros(8), "objective=multilabel needs 0 or 1 for each label"),
        ("segmentation", torch.zeros(8, dtype=torch.int64), "objective=segmentation needs a class per pixel"),
        ("regression", torch.full((8,), torch.nan), "a target is NaN or infinite"),
    ],
)
def test_targets_that_do_not_fit_the_objective_are_refused(
    objective: str, targets: torch.Tensor, message: str, tmp_path: Path
) -> None:
    part = (torch.zeros(8, 3), targets)
    with pytest.raises(InputError, match=f"domain 'd' train: .*{message}"):
        learn(tmp_path / "run", "fedavg", Benchmark.of([Domain.of("d", part, part)]), objective=objective)


def test_classes_of_a_benchmark_do_not_pass_for_values(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="benchmark=digits-shift: its targets are classes") as refused:
        fedspecial.run("digits-shift", objective="regression", method="fedavg", out=tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_metric_that_is_not_defined_is_null_and_left_out_of_means(tmp_path: Path) -> None:
    first, second = tags().domains
    same = (second.train.x, torch.ones(64, 2))
    problem = Benchmark("tags", (first, Domain.of("same", same, same)), ("up", "right"), kind="table")
    result = learn(tmp_path / "run", "fedavg", problem, objective="multilabel", **LINEAR)
    assert [row[1] for row in result.matrix] == [None, None]
    assert result.acc == result.matrix[1][0]
    assert "AUROC is not defined on same and left out of means" in result.notes
    assert json.loads((tmp_path / "run" / "result.json").read_text())["matrix"][0][1] is None
    assert "| – |" in (tmp_path / "run" / "README.md").read_text()


@pytest.mark.usefixtures("drawn_figures")
def test_values_outside_0_to_1_are_not_shown_in_per_cent(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "fedavg", lines(), objective=OWN, pictures=True, rounds=1, **LINEAR)
    assert result.acc is not None
    assert f"ACC {result.acc:.3f} " in result_line(result)
    assert matrix_table("t", result.tasks, result.matrix, result.scale).columns[0].header == "closeness"
    summary = Summary.of([result])
    assert summary.text(MeanStd(-1.5, 0.25)) == "-1.500 ± 0.250"
    card = (tmp_path / "run" / "README.md").read_text()
    assert "Each row shows the closeness on all domains" in card
    assert "per cent" not in card


def test_metrics_of_classification_are_in_the_events_the_result_and_the_card(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "fedavg", rotated_blobs(2))
    expected = {"balanced_accuracy", "macro_f1", "auroc", "ece", "per_class_accuracy"}
    assert set(result.metrics) == expected
    finished = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "task_finished")
    for row, event in enumerate(finished):
        assert set(event["metrics"]) == expected
        assert event["metrics"]["auroc"] == result.metrics["auroc"][row]
        for domain, value in enumerate(event["metrics"]["balanced_accuracy"]):
            per_class = event["metrics"]["per_class_accuracy"][domain]
            assert value == pytest.approx(sum(per_class) / len(per_class))
    card = (tmp_path / "run" / "README.md").read_text()
    assert "| AUROC |" in card
    last = result.metrics["per_class_accuracy"][-1]
    for number, name in enumerate("abc"):
        assert f"| per-class accuracy: {name} | {last[0][number]:.3f} | {last[1][number]:.3f} |" in card
