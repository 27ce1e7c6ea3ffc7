"""Executing the run of a directory on a terminal: progress, result and what to type after an interruption."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedspecial import config
from fedspecial.cli.console import err, out

if TYPE_CHECKING:
    from fedspecial.report.result import Result


def resume_with_progress(
    folder: Path, execution: config.Settings | None = None, new: Sequence[str] | None = None
) -> None:
    """Execute the run of a directory, or extend it by new domains; show its progress and print its result."""
    from fedspecial.cli.progress import RunProgress
    from fedspecial.cli.tables import matrix_table, metrics_table, result_line
    from fedspecial.runs import api
    from fedspecial.runs import extend as extending

    execution = api.execution_settings(execution or {}, api.KEPT if new is None else extending.KEPT)
    progress = RunProgress(out, folder)
    how = {"listeners": [progress], "progress": False, **execution}
    try:
        with progress.showing():
            result: Result = api.resume(folder, **how) if new is None else extending.extend(folder, new, **how)
    except KeyboardInterrupt:
        err.print(f"\nstopped; continue with: fedspecial resume {folder}", markup=False)
        sys.exit(130)
    title = f"{result.method} on {result.benchmark}"
    out.print(matrix_table(title, result.tasks, result.matrix, result.scale, result.rows))
    out.print(result_line(result), markup=False)
    if (further := metrics_table(result)) is not None:
        out.print(further)
    for text in result.warnings:
        out.print(f"warning: {text}", markup=False)
    out.print(f"all files are in {folder}", markup=False)
