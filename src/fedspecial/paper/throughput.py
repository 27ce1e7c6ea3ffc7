"""Measured durations: a few rounds of a method on a benchmark, timed on this machine, give the time of a whole run.

They are stored in the directory of studies, in throughput.json, and used only for estimates.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedspecial.config import Settings, merge_settings
from fedspecial.core.files import write_atomic
from fedspecial.data import catalogue
from fedspecial.errors import InputError
from fedspecial.paper.scales import SCALES

FILE = "throughput.json"
ROUNDS, TASKS = 3, 2
"""Of a timed run. Two tasks, because some methods work differently from the second task on."""


@dataclass(frozen=True)
class Timed:
    """What was measured in a short run.

    per_round: seconds of a round, without evaluation
    rest:      seconds of everything else: loading data, evaluation, work between tasks
    device:    the torch device of the run
    """

    per_round: float
    rest: float
    device: str

    def whole_run(self, rounds: int, tasks: int, *, evaluated_every_round: bool) -> float:
        """Seconds of a run with so many rounds per task. The rest grows with the evaluations, or with the tasks."""
        share = rounds * tasks / (ROUNDS * TASKS) if evaluated_every_round else tasks / TASKS
        return self.per_round * rounds * tasks + self.rest * share


Throughput = Mapping[str, Timed]
"""By `key_of`."""


def key_of(scale: str, benchmark: str, method: str) -> str:
    return f"{scale} {benchmark} {method}"


def _settings(scale: str, benchmark: str, method: str) -> Settings:
    return merge_settings({**SCALES[scale][benchmark].settings, "method": method})


def _domains(settings: Settings) -> list[str]:
    return list(settings.get("domains") or catalogue.entry(str(settings["benchmark"])).domains)


def short_settings(scale: str, benchmark: str, method: str) -> Settings:
    """The settings of a timed run: those of the benchmark, with few rounds and the first domains."""
    settings = _settings(scale, benchmark, method)
    return {**settings, "domains": _domains(settings)[:TASKS], "rounds": ROUNDS, "seed": 5}


def timed(settings: Settings, folder: Path) -> Timed:
    """Run and measure. The result is not used, so that no accuracy of a study is looked at."""
    from fedspecial.runs.api import run

    began = time.monotonic()
    result = run(**{**settings, "out": str(folder)}, progress=False)
    total = time.monotonic() - began
    in_rounds = result.seconds_per_round * ROUNDS * TASKS
    return Timed(result.seconds_per_round, max(0.0, total - in_rounds), str(settings.get("device", "cpu")))


def run_seconds(throughput: Throughput, scale: str, benchmark: str, method: str) -> float | None:
    """Estimated seconds of a whole run with the settings of the benchmark, or None if it was not timed."""
    found = throughput.get(key_of(scale, benchmark, method))
    if found is None:
        return None
    settings = _settings(scale, benchmark, method)
    tasks = len(_domains(settings))
    if method == "joint":  # every task has the samples of all domains
        found = replace(found, per_round=found.per_round * tasks / TASKS)
    every_round = bool(settings.get("eval_every"))
    return found.whole_run(int(settings["rounds"]), tasks, evaluated_every_round=every_round)


def read_throughput(folder: Path) -> dict[str, Timed]:
    """What was measured in a directory of studies; empty if nothing was."""
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        content: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        return {key: Timed(**entry) for key, entry in content.items()}
    except (ValueError, TypeError, AttributeError):
        raise InputError(f"{path}: damaged or edited; delete it and measure again") from None


def add_throughput(folder: Path, key: str, found: Timed) -> None:
    """Store one measurement at once, so that an interrupted command has not lost the others."""
    content = {**read_throughput(folder), key: found}
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({name: asdict(entry) for name, entry in content.items()}, indent=1)
    write_atomic(folder / FILE, (text + "\n").encode())
