"""Mistakes that used to end in a raw exception end in one line that says what to do."""

from __future__ import annotations

import errno
import io
import math
import os
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from torch import nn

import fedspecial
from fedspecial import InputError
from fedspecial.cli.tables import matrix_table, metrics_table
from fedspecial.config.paths import absolute_paths
from fedspecial.core import events, files
from fedspecial.data.partition import Partition
from fedspecial.data.preview import draw, save
from fedspecial.methods.base import Method
from fedspecial.runs import directory, execute, jobs
from fedspecial.runs.directory import failure_recorded
from toy_problems import learn, rotated_blobs


@pytest.mark.parametrize("given", [rotated_blobs().domains[0], rotated_blobs().domains[0].train.x, {"A": 1}])
def test_something_else_than_a_list_of_domains_is_named(given: object) -> None:
    with pytest.raises(InputError, match=rf"^benchmark: expected .* a list of domains, not {type(given).__name__}; "):
        fedspecial.run(given, model="mlp")  # type: ignore[arg-type]


def test_something_else_in_the_list_of_domains_is_named() -> None:
    with pytest.raises(
        InputError, match=r"^benchmark: tuple in the list of domains; .* Domain\.of\(name, train, test\)"
    ):
        fedspecial.run([("A", rotated_blobs().domains[0].train, rotated_blobs().domains[0].test)], model="mlp")  # type: ignore[list-item]


def test_an_error_that_cannot_be_recorded_is_still_the_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="out of memory"), failure_recorded(tmp_path / "gone"):
        raise RuntimeError("out of memory")


class Forgetful(Method):
    def server_step(self, server: Any, mean: Any, info: Any) -> Any:
        server.theta.add_(mean["theta"], alpha=info.server_lr)


def test_a_server_step_without_a_report_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="method=forgetful: server_step returned NoneType, expected a StepReport"):
        learn(tmp_path / "run", Forgetful())


def test_a_class_instead_of_an_object_is_named(tmp_path: Path) -> None:
    expected = r"method=Special: this is a class; give an object of it, Special\(…\)"
    with pytest.raises(InputError, match=expected):
        fedspecial.run(rotated_blobs(), method=fedspecial.Special, out=tmp_path / "run")
    with pytest.raises(InputError, match=expected):
        fedspecial.compare(rotated_blobs(), [fedspecial.Special], seeds=[1], out=tmp_path / "all")


def test_something_else_instead_of_a_method_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="method=3: expected a name or an object"):
        fedspecial.run(rotated_blobs(), method=3, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"methods": "special,fedavg"},
            r"methods=special,fedavg: expected a list, such as methods=\['special', 'fedavg'\]",
        ),
        ({"methods": fedspecial.Special()}, r"methods=Special\(.*: expected a list"),
        ({"seeds": 3}, r"seeds=3: expected a list, such as seeds=\[25, 225\]"),
        ({"seeds": "1,2"}, "seeds=1,2: expected a list"),
        ({"methods": []}, "methods=: give at least one"),
        ({"method": "fedavg"}, r"method=fedavg: compare takes several; write methods=\[…\]"),
        ({"seed": 3}, r"seed=3: compare takes several; write seeds=\[…\]"),
    ],
)
def test_a_comparison_takes_lists_of_methods_and_seeds(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        fedspecial.compare(rotated_blobs(), out=tmp_path / "all", **given)


def test_seeds_of_a_search_are_a_list(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^seeds=25: expected a list"):
        fedspecial.tune("digits-shift", seeds=25, out=tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given", [{"cap": 5}, {"holdout": 0.5}, {"domains": "d1"}, {"data": "/"}, {"on_bad": "skip"}, {"image_size": 8}]
)
def test_settings_of_the_reader_are_refused_beside_an_object(given: dict[str, Any], tmp_path: Path) -> None:
    """They would not be used: with `holdout`, what is reported as held out would be the test data."""
    (key,) = given
    with pytest.raises(InputError, match=f"^{key}=.*: the benchmark is a Python object"):
        fedspecial.run(rotated_blobs(), model="mlp", out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match=f"^{key}=.*: the benchmark is a Python object"):
        fedspecial.compare(rotated_blobs(), ["fedavg"], [1], model="mlp", out=tmp_path / "runs", **given)


def test_settings_of_the_reader_are_refused_beside_an_object_to_test_on(tmp_path: Path) -> None:
    learn(tmp_path / "run", "fedavg")
    with pytest.raises(InputError, match=r"^cap=5: the benchmark is a Python object"):
        fedspecial.evaluate(tmp_path / "run", rotated_blobs(), cap=5)


@pytest.mark.parametrize(
    ("listeners", "message"),
    [(print, "listeners=.*: expected a list"), ([3], "listeners: expected functions, not int")],
)
def test_listeners_are_a_list_of_functions(listeners: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        fedspecial.run(rotated_blobs(), model="mlp", listeners=listeners, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_settings_as_a_mapping_instead_of_a_file_are_named() -> None:
    with pytest.raises(InputError, match=r"^config: expected the path of a YAML file, not dict"):
        fedspecial.run(config={"rounds": 1})  # type: ignore[arg-type]


def test_a_finished_run_takes_no_other_settings_either(tmp_path: Path) -> None:
    learn(tmp_path / "run", "fedavg")
    with pytest.raises(InputError, match=r"^rounds=5: a resumed run keeps its settings"):
        fedspecial.resume(tmp_path / "run", rounds=5)


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """YAML does not expand it, and not every shell does in ``out=~/runs/a``."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "images").mkdir()
    assert absolute_paths({"data": "~/images"}) == {"data": str(tmp_path / "images")}
    assert directory.create({"benchmark": "digits-shift", "out": "~/runs/a"}) == tmp_path / "runs" / "a"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), r"the shape of '1\.weight' is not known yet"),
        (
            lambda: nn.Sequential(nn.Flatten(), filled(nn.Linear(6, 3), math.nan)),
            r"'1\.weight' contains NaN or infinity",
        ),
    ],
)
def test_a_model_that_cannot_begin_is_named(make: Callable[[], nn.Module], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^model: .*{message}"):
        learn(tmp_path / "run", "fedavg", model=make())
    assert not (tmp_path / "run").exists()


def filled(module: nn.Linear, value: float) -> nn.Linear:
    nn.init.constant_(module.weight, value)
    return module


X, Y = np.zeros((40, 2), np.float32), np.arange(40) % 2


@pytest.mark.parametrize(
    ("name", "x", "message"),
    [
        (1, X, "domain 1: the name of a domain is a text"),
        ("", X, "domain '': the name of a domain is a text"),
        ("a", X.astype(str), r"domain 'a' train: ndarray does not become a tensor"),
        ("a", X.astype(np.uint16), "domain 'a' train: inputs of type uint16 .* convert them to float32"),
        ("a", X.astype(np.complex64), "domain 'a' train: inputs of type complex64 .* convert them to float32"),
        ("a", X[:, 0], r"model=logistic: needs inputs of samples × features.*reshape\(-1, 1\)"),
        ("a", X.astype(int), "model=logistic: .* or give the numbers of a table as float32"),
    ],
)
def test_inputs_that_no_model_reads_are_named(name: Any, x: np.ndarray, message: str, tmp_path: Path) -> None:
    def train() -> None:
        domain = fedspecial.Domain.of(name, (x, Y), (x, Y))
        fedspecial.run([domain], model="logistic", out=tmp_path / "run", clients=2, clients_per_round=2)

    with pytest.raises(InputError, match=f"^{message}"):
        train()


ODD_NAMES = ["[/a] old", "a|b", r"$\bad$ US", "<b>é"]


@pytest.mark.usefixtures("drawn_figures")
def test_names_that_mean_something_to_a_format_are_shown_as_they_are(tmp_path: Path) -> None:
    """Markup of rich, formulas of matplotlib, columns of Markdown: the first two ended a finished run with an error."""
    domains = [fedspecial.Domain.of(name, (X, Y), (X, Y)) for name in ODD_NAMES]
    benchmark = fedspecial.Benchmark.of(domains, classes=["$x^{$", "[y]"])
    settings: dict[str, Any] = {"model": "logistic", "rounds": 1, "clients": 2, "clients_per_round": 2, "alpha": 10}
    result = fedspecial.run(benchmark, out=tmp_path / "run", **settings)
    assert (tmp_path / "run" / "matrix.png").exists()
    console = Console(width=200, file=io.StringIO())
    console.print(matrix_table("[/t]", result.tasks, result.matrix))
    console.print(metrics_table(result))
    shown = console.file.getvalue()
    assert all(shown.count(name) >= 2 for name in ODD_NAMES)
    assert r"| after a\|b |" in (tmp_path / "run" / "README.md").read_text()
    parts = [Partition.of([np.arange(40)]) for _ in domains]
    save(draw(benchmark, parts), tmp_path / "preview.png")
    assert (tmp_path / "preview.png").exists()


def test_a_name_with_a_line_break_is_refused() -> None:
    with pytest.raises(InputError, match=r"the name 'a\\nb' of a domain contains a line break"):
        fedspecial.Benchmark.of([fedspecial.Domain.of("a\nb", (X, Y), (X, Y))]).check()


def test_a_class_that_is_named_twice_is_refused() -> None:
    domain = fedspecial.Domain.of("a", (X, Y), (X, Y))
    with pytest.raises(InputError, match="the class 'ill' occurs twice"):
        fedspecial.Benchmark.of([domain], classes=["ill", "ill"]).check()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_with_too_few_outputs_is_named(workers: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model: it has too few outputs .* the data has 3 classes"):
        learn(tmp_path / "run", "fedavg", model=nn.Sequential(nn.Flatten(), nn.Linear(6, 2)), workers=workers)


def test_a_process_of_a_run_that_was_killed_is_named(tmp_path: Path) -> None:
    lost: Future[None] = Future()
    lost.set_exception(BrokenProcessPool("terminated abruptly"))
    with pytest.raises(InputError, match=r"special-25: a process that executes runs was killed, .* repeat the call"):
        jobs._report(jobs.Job("special", 25, {}, tmp_path / "special-25"), lost, None)


def full_after(count: int, write: Callable[..., Any]) -> Callable[..., Any]:
    """The disk is full from the given call on."""
    calls = 0

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(*args, **kwargs)

    return failing


WRITES = {
    "events": (events.EventLog, "write", 7),
    "blobs": (files.BlobStore, "put", 5),
    "checkpoint": ("fedspecial.engine.checkpoint.write_atomic", None, 4),
    "settings": ("fedspecial.runs.directory.write_atomic", None, 0),
    "card": ("fedspecial.runs.execute.write_atomic", None, 0),
    "result": ("fedspecial.runs.execute.write_atomic", None, 1),
}


@pytest.mark.parametrize("kind", WRITES)
def test_a_full_disk_is_one_line_and_the_run_can_be_resumed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = learn(tmp_path / "whole", "special")
    target, name, count = WRITES[kind]
    with monkeypatch.context() as patch:
        if isinstance(target, str):
            function = {"checkpoint": files, "directory": files, "execute": files}[target.split(".")[2]].write_atomic
            patch.setattr(target, full_after(count, function))
        else:
            assert name is not None
            patch.setattr(target, name, full_after(count, getattr(target, name)))
        with pytest.raises(InputError, match=r"run: it cannot be written \(No space left on device\).*resume"):
            learn(tmp_path / "run", "special")
    assert (tmp_path / "run").exists() or kind == "settings"
    if kind != "settings":
        for drawing in ("draw_matrix", "draw_curves", "draw_drift"):
            monkeypatch.setattr(execute, drawing, lambda *args: None)
        resumed = fedspecial.resume(tmp_path / "run", benchmark=rotated_blobs())
        assert resumed.model_sha256 == whole.model_sha256
        assert resumed.matrix == whole.matrix


def test_an_unfinished_file_leaves_no_part_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.os, "fsync", full_after(0, os.fsync))
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(tmp_path / "file", b"data")
    assert list(tmp_path.iterdir()) == []


def test_other_errors_of_the_system_are_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*args: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files.BlobStore, "put", denied)
    with pytest.raises(PermissionError):
        learn(tmp_path / "run")
