"""The command line in a process that kills itself when it reaches a named point for the n-th time.

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

Kill = Callable[[], None]


def kill_at(point: str, number: int = 1, kind: int = signal.SIGKILL) -> None:
    """Send this process the signal when it reaches the point for the n-th time."""
    passes = itertools.count(1)

    def kill() -> None:
        if next(passes) == number:
            os.kill(os.getpid(), kind)

    POINTS[point](kill)


def _before_fsync(matches: Callable[[Path], bool]) -> Callable[[Kill], None]:
    def install(kill: Kill) -> None:
        real = os.fsync

        def fsync(descriptor: int) -> None:
            if matches(Path(os.readlink(f"/proc/self/fd/{descriptor}"))):
                kill()
            real(descriptor)

        os.fsync = fsync

    return install


def _around_rename(name: str, *, before: bool) -> Callable[[Kill], None]:
    def install(kill: Kill) -> None:
        real = os.replace

        def replace(source: Any, target: Any) -> None:
            if before and Path(target).name == name:
                kill()
            real(source, target)
            if not before and Path(target).name == name:
                kill()

        os.replace = replace

    return install


def _before_event(kind: str | None, *, after_rename_of: str | None = None) -> Callable[[Kill], None]:
    def install(kill: Kill) -> None:
        from fedspecial.core.events import EventLog

        real, renamed = EventLog.write, []

        def write(log: EventLog, event: Any) -> None:
            if kind in (None, event.event) and (after_rename_of is None or renamed):
                kill()
            real(log, event)

        EventLog.write = write  # type: ignore[method-assign]
        if after_rename_of is not None:
            _around_rename(after_rename_of, before=False)(lambda: renamed.append(True))

    return install


def _in_training(kill: Kill) -> None:
    """Every backward pass: local training goes to the autograd engine directly, methods call `Tensor.backward`."""
    import torch

    from fedspecial.engine.clients import local

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            kill()
            return real(*args, **kwargs)

        return backward

    torch.Tensor.backward = counted(torch.Tensor.backward)  # type: ignore[method-assign]
    local._backward = counted(local._backward)


def _in_import(kill: Kill) -> None:
    class Finder:
        @staticmethod
        def find_spec(name: str, *_: Any) -> None:
            if name == "torch.nn":
                kill()

    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]


POINTS: dict[str, Callable[[Kill], None]] = {
    "import of torch": _in_import,
    "first settings": _around_rename("config.yaml", before=True),
    "after rename of config.yaml": _around_rename("config.yaml", before=False),
    "before run_extended": _before_event("run_extended"),
    "schema.json": _around_rename("schema.json", before=True),
    "training": _in_training,
    "before fsync of a blob": _before_fsync(lambda path: path.parent.name == "blobs"),
    "before fsync of checkpoint.json": _before_fsync(lambda path: path.name == "checkpoint.json.part"),
    "after rename of checkpoint.json": _around_rename("checkpoint.json", before=False),
    "between rename and event": _before_event(None, after_rename_of="checkpoint.json"),
    "before a round's event": _before_event("round"),
    "between last round and task_finished": _before_event("task_finished"),
    "before run_finished": _before_event("run_finished"),
    "plots": _around_rename("curves.png", before=True),
    "result.json": _around_rename("result.json", before=True),
}


if __name__ == "__main__":
    kill_at(sys.argv[1], int(sys.argv[2]))
    sys.argv[1:] = sys.argv[3:]
    from fedspecial.cli.main import main

    main()
