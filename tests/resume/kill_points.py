"""The command line in a process that ends itself at the n-th pass of a named point.

As a script: ``python kill_points.py POINT N run digits-shift out=...``
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Die = Callable[[], None]


def arrange(point: str, number: int = 1, kind: int = signal.SIGKILL) -> None:
    """From now on, this process gets the signal when it reaches the point for the n-th time."""
    passes = itertools.count(1)

    def die() -> None:
        if next(passes) == number:
            os.kill(os.getpid(), kind)

    POINTS[point](die)


def _before_fsync(hit: Callable[[Path], bool]) -> Callable[[Die], None]:
    def install(die: Die) -> None:
        real = os.fsync

        def fsync(descriptor: int) -> None:
            if hit(Path(os.readlink(f"/proc/self/fd/{descriptor}"))):
                die()
            real(descriptor)

        os.fsync = fsync

    return install


def _around_rename(name: str, *, before: bool) -> Callable[[Die], None]:
    def install(die: Die) -> None:
        real = os.replace

        def replace(source: Any, target: Any) -> None:
            if before and Path(target).name == name:
                die()
            real(source, target)
            if not before and Path(target).name == name:
                die()

        os.replace = replace

    return install


def _before_event(kind: str | None, *, after_rename_of: str | None = None) -> Callable[[Die], None]:
    def install(die: Die) -> None:
        from fedspecial.core.events import EventLog

        real, renamed = EventLog.write, []

        def write(log: EventLog, event: Any) -> None:
            if kind in (None, event.event) and (after_rename_of is None or renamed):
                die()
            real(log, event)

        EventLog.write = write  # type: ignore[method-assign]
        if after_rename_of is not None:
            _around_rename(after_rename_of, before=False)(lambda: renamed.append(True))

    return install


def _in_training(die: Die) -> None:
    """Every backward pass: local training goes to the autograd engine directly, methods call `Tensor.backward`."""
    import torch

    from fedspecial.engine import local

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            die()
            return real(*args, **kwargs)

        return backward

    torch.Tensor.backward = counted(torch.Tensor.backward)  # type: ignore[method-assign]
    local._backward = counted(local._backward)


def _in_import(die: Die) -> None:
    class Finder:
        @staticmethod
        def find_spec(name: str, *_: Any) -> None:
            if name == "torch.nn":
                die()

    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]


POINTS: dict[str, Callable[[Die], None]] = {
    "import of torch": _in_import,
    "first words": _around_rename("config.yaml", before=True),
    "training": _in_training,
    "before fsync of a blob": _before_fsync(lambda path: path.parent.name == "blobs"),
    "before fsync of checkpoint.json": _before_fsync(lambda path: path.name == "checkpoint.json.part"),
    "after rename of checkpoint.json": _around_rename("checkpoint.json", before=False),
    "between rename and event": _before_event(None, after_rename_of="checkpoint.json"),
    "before a round's event": _before_event("round"),
    "between last round and row": _before_event("task_finished"),
    "before run_finished": _before_event("run_finished"),
    "plots": _around_rename("curves.png", before=True),
    "result.json": _around_rename("result.json", before=True),
}


if __name__ == "__main__":
    arrange(sys.argv[1], int(sys.argv[2]))
    sys.argv[1:] = sys.argv[3:]
    from fedspecial.cli.main import main

    main()
