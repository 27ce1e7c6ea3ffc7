"""A run that cannot work is refused before training, in one line, and leaves no files behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedspecial
from fedspecial import Benchmark, Domain, InputError
from fedspecial.config import parse_settings
from fedspecial.core.events import RoundFinished
from fedspecial.runs.evaluate import evaluate
from toy_problems import QUICK, images, learn, rotated_blobs


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "cuda:7"}, "device=cuda:7: torch cannot use it"),
        ({"device": "toaster"}, "device=toaster: torch cannot use it"),
        (
            {"clients": 40, "clients_per_round": 1},
            "min_per_client=4: 96 rows are too few for clients=40; it needs at most clients=24",
        ),
        ({"model": "cnn"}, "model=cnn: needs images"),
        ({"model": "cn"}, r"model=cn: not a known model \(did you mean 'cnn'\?\)"),
        ({"weights": "nowhere.safetensors"}, "weights=nowhere.safetensors: cannot be read"),
        ({"partition": "sites"}, "partition=sites"),
    ],
)
def test_a_run_that_cannot_start_leaves_no_directory(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as refused:
        learn(tmp_path / "run", "special", **settings)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_the_partitions_of_all_tasks_are_checked_before_the_first_task_is_learned(tmp_path: Path) -> None:
    first, second = rotated_blobs(2).domains
    small = Domain(second.name, second.train.take(slice(0, 6)), second.test)
    problem = Benchmark("shrinks", (first, small), tuple("abc"), kind="table")
    with pytest.raises(InputError, match=r"domain '.*': min_per_client=.*: 6 rows are too few"):
        learn(tmp_path / "run", "fedavg", problem)
    assert not (tmp_path / "run").exists()


def test_an_empty_domain_is_named(tmp_path: Path) -> None:
    domain = rotated_blobs(1).domains[0]
    empty = Domain("nothing", domain.train.take(slice(0, 0)), domain.test)
    with pytest.raises(InputError, match="domain 'nothing' train: has no samples"):
        fedspecial.run([empty], out=tmp_path / "run", **QUICK)


def test_a_value_that_is_not_valid_yaml_is_refused() -> None:
    with pytest.raises(InputError, match=r"domains=\[a: the value is not valid YAML"):
        parse_settings(["domains=[a"])


def test_a_presets_width_applies_only_to_the_presets_model() -> None:
    from fedspecial.config import merge_settings, resolve

    assert resolve(merge_settings({"benchmark": "digits-shift"})).config.width == 16
    assert resolve(merge_settings({"benchmark": "digits-shift", "model": "logistic"})).config.width is None
    assert resolve(merge_settings({"benchmark": "digits-shift", "model": "mlp", "width": 5})).config.width == 5


def stopped_run(folder: Path) -> Path:
    def stop(event: Any) -> None:
        if isinstance(event, RoundFinished) and event.task == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(folder, "special", listeners=[stop])
    return folder


def test_a_run_is_not_resumed_with_different_data(tmp_path: Path) -> None:
    folder = stopped_run(tmp_path / "run")
    domains = rotated_blobs().domains
    other = Domain("d1", domains[0].test, domains[0].train)
    with pytest.raises(InputError, match="the data differs from the data with which the run began"):
        fedspecial.resume(folder, benchmark=Benchmark("blobs", (other, *domains[1:]), tuple("abc"), kind="table"))
    assert fedspecial.resume(folder, benchmark=rotated_blobs()).acc > 0


def test_a_run_is_not_resumed_from_edited_events(tmp_path: Path) -> None:
    folder = stopped_run(tmp_path / "run")
    lines = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    event = json.loads(lines[2])
    edited = json.dumps({**event, "task": 9}) + "\n"
    (folder / "events.jsonl").write_text("".join([*lines[:2], edited.rjust(len(lines[2])), *lines[3:]]))
    before = (folder / "events.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"events\.jsonl was changed"):
        fedspecial.resume(folder, benchmark=rotated_blobs())
    assert (folder / "events.jsonl").read_bytes() == before


def test_evaluating_a_run_on_a_table_with_missing_values_repeats_the_last_row_of_its_matrix(tmp_path: Path) -> None:
    domains = []
    for domain in rotated_blobs(2).domains:
        for samples in (domain.train, domain.test):
            samples.x[::5, 2] = float("nan")
        domains.append(domain)
    problem = Benchmark("gaps", tuple(domains), tuple("abc"), kind="table")
    result = learn(tmp_path / "run", "special", problem)
    assert list(evaluate(tmp_path / "run", problem).values()) == pytest.approx(result.matrix[-1])


@pytest.mark.parametrize("policy", ["average", "mean-only", "local", "bank"])
def test_evaluating_a_finished_run_repeats_the_last_row_of_its_matrix(policy: str, tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "special", images(), model="cnn", width=4, batch_norm=policy)
    tested = evaluate(tmp_path / "run", images())
    assert list(tested.values()) == pytest.approx(result.matrix[-1])
