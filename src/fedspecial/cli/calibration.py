"""`fedspecial study calibrate`: time a few rounds on this machine, so that `--plan` can print hours."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedspecial.cli.console import err, out
from fedspecial.cli.study_runs import duration


def calibrate(
    scale: str,
    studies: Sequence[str],
    benchmarks: Sequence[str] | None,
    methods: Sequence[str] | None,
    folder: Path,
    *,
    data: str | None,
    gpus: Sequence[str],
) -> None:
    """Time every method on every benchmark of the studies that was not timed yet, one after the other."""
    from fedspecial.paper.throughput import add_throughput, key_of, read_throughput, run_seconds, short_settings, timed

    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[0]
    known = read_throughput(folder)
    for benchmark, method in _wanted(scale, studies, benchmarks, methods, data):
        key = key_of(scale, benchmark, method)
        if key not in known:
            where = {**({"data": data} if data else {}), **({"device": "cuda"} if gpus else {})}
            with tempfile.TemporaryDirectory() as scratch:
                found = timed({**short_settings(scale, benchmark, method), **where}, Path(scratch) / "run")
            add_throughput(folder, key, found)
            known[key] = found
        whole = run_seconds(known, scale, benchmark, method)
        line = f"{benchmark} {method}: {known[key].per_round:.2f} s per round on {known[key].device}"
        out.print(f"{line}, a run takes about {duration(whole or 0.0)}", markup=False)


def _wanted(
    scale: str,
    studies: Sequence[str],
    benchmarks: Sequence[str] | None,
    methods: Sequence[str] | None,
    data: str | None,
) -> list[tuple[str, str]]:
    """The benchmarks and methods of the studies that can be run here; the others are named."""
    from fedspecial.paper.grid import StudyRequest, grid_points
    from fedspecial.paper.planning import supports, why_absent
    from fedspecial.paper.registry import STUDIES, find

    chosen = [find(name) for name in studies] or [study for study in STUDIES if scale in study.scales]
    points = (point for study in chosen for point in grid_points(study, StudyRequest(study.name, scale)))
    pairs = dict.fromkeys((point.benchmark, point.row.method) for point in points)
    reasons = {benchmark: why_absent(scale, benchmark, data) for benchmark, _ in pairs}
    for reason in filter(None, reasons.values()):
        err.print(f"skipped: {reason}", markup=False)
    return [
        (benchmark, method)
        for benchmark, method in pairs
        if reasons[benchmark] is None
        and supports(scale, benchmark, method)
        and (benchmarks is None or benchmark in benchmarks)
        and (methods is None or method in methods)
    ]
