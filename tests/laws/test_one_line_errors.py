"""Mistakes that used to end in a raw exception end in one line that says what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import fedspecial
from fedspecial import InputError
from fedspecial.core import events, files
from fedspecial.methods.base import Method
from fedspecial.runs import execute
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


@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_with_too_few_outputs_is_named(workers: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model: it has too few outputs .* the data has 3 classes"):
        learn(tmp_path / "run", "fedavg", model=nn.Sequential(nn.Flatten(), nn.Linear(6, 2)), workers=workers)


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
