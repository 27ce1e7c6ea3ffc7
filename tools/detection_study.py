"""The study of docs/science/detection.md: how well are new tasks detected, and what does it cost?

    python tools/detection_study.py tune  FOLDER     thresholds, from the losses of three runs of digits-shift
    python tools/detection_study.py run   FOLDER     all runs, or those of the data sets named after it; finished ones
                                                     are kept
    python tools/detection_study.py table FOLDER     writes the tables of the page

Each run is one line of FOLDER/runs.jsonl. FEDSPECIAL_DATA has to point to the data.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from fedspecial.config import merge_settings, resolve
from fedspecial.core.events import read_events
from fedspecial.core.messages import ServerState
from fedspecial.engine.detection import DETECTORS, alarm_share, begin_task, begins_task, observe
from fedspecial.metrics.detection import score_detection
from fedspecial.paper.marks import replace_between
from fedspecial.report.result import result_of
from fedspecial.runs.build import prepare
from fedspecial.runs.data import apply_sites, load_benchmark, make_federation
from fedspecial.runs.devices import torch_settings
from fedspecial.runs.directory import create
from fedspecial.runs.execute import run_remaining

PAGE = Path(__file__).parent.parent / "docs" / "science" / "detection.md"
COMMON = {"method": "special", "rounds": 20, "eval_every": 0, "checkpoint_seconds": 3600}
DATA: dict[str, dict[str, Any]] = {
    "digits-shift": {"cap": 300},
    "heart": {},
    "gas-drift": {},
    "spoken-digits": {"domains": "george,jackson,lucas"},
}
TUNED_ON = "digits-shift"
STREAMS = ("sharp", "blended", "staggered", "recurring")
SEEDS = (1, 2, 3, 4, 5)
VARIANTS: dict[str, dict[str, Any]] = {
    "loss": {"detect": "loss"},
    "announced": {},
    "announced, γ_G = 1": {"server_lr": 1.0},
    "loss, γ_G = 1": {"detect": "loss", "server_lr": 1.0},
    "adwin": {"detect": "adwin"},
    "page-hinkley": {"detect": "page-hinkley"},
}
GRID = {
    "loss": (5.0, 3.0, 8.0, 2.0, 12.0),
    "adwin": (0.002, 0.01, 0.05, 0.1, 0.2, 0.3),
    "page-hinkley": (1.0, 0.5, 2.0, 0.25, 4.0),
}
"""Thresholds that are tried, the first of those that are equally good wins."""


def execute(settings: dict[str, Any]) -> tuple[Any, ServerState]:
    """The result of a run and the server's last state; nothing is kept on the disk."""
    with tempfile.TemporaryDirectory() as folder:
        merged = merge_settings({**COMMON, **settings, "out": str(Path(folder) / "run")})
        resolved = resolve(merged)
        benchmark = load_benchmark(resolved.config, resolved.objective.targets)
        resolved = apply_sites(resolved, benchmark)
        federation = make_federation(resolved.config, benchmark)
        path = create(merged)
        run = prepare(path, resolved, federation, None, None)
        with torch_settings(resolved.config):
            run_remaining(path, resolved, run, None, {})
        return result_of(read_events(path / "events.jsonl")), run.server


def tune(folder: Path) -> None:
    """Which threshold would have found most borders within three rounds with the fewest false alarms?"""
    states = []
    for seed in (101, 102, 103):
        given = {**DATA[TUNED_ON], "benchmark": TUNED_ON, "seed": seed, "detect": "loss", "detect_threshold": 1e9}
        states.append(execute(given)[1])
    lines = []
    for name, thresholds in GRID.items():
        found = [(sum(_faults(state, name, threshold) for state in states), threshold) for threshold in thresholds]
        best = min(found, key=lambda pair: pair[0])
        lines.append({"detector": name, "faults": found, "chosen": best[1], "default": DETECTORS[name][1]})
        print(lines[-1], flush=True)
    (folder / "thresholds.json").write_text(json.dumps(lines, indent=1) + "\n")


def _faults(state: ServerState, detector: str, threshold: float) -> int:
    """Borders that are not found within three rounds, and false alarms, if these losses had been watched."""
    config = resolve(merge_settings({"detect": detector, "detect_threshold": threshold})).config
    by_time: dict[int, dict[int, float]] = defaultdict(dict)
    for client, history in state.first_losses.items():
        for time, loss in zip(history[0::2], history[1::2], strict=True):
            by_time[int(time)][int(client)] = loss
    watcher, detected, borders = ServerState(theta=state.theta), [], [20, 40, 60]
    for time in sorted(by_time):
        observe(watcher, time, by_time[time])
        if begins_task(watcher, config, time, alarm_share(watcher, config, time)):
            detected.append(time)
            begin_task(watcher, time + 1)
    score = score_detection(detected, borders, rounds=80, per_domain=20)
    return sum(delay is None or delay > 3 for delay in score.delays) + len(score.false_alarms)


def run_all(folder: Path, only: Sequence[str] = ()) -> None:
    """only: the data sets to run; all if none is given"""
    path = folder / "runs.jsonl"
    done = {_key(line) for line in _lines(path)}
    for data, stream, variant, seed in product(only or DATA, STREAMS, VARIANTS, SEEDS):
        line: dict[str, Any] = {"data": data, "stream": stream, "variant": variant, "seed": seed}
        if _key(line) in done:
            continue
        given = {**DATA[data], **VARIANTS[variant], "benchmark": data, "stream": stream, "seed": seed}
        result, _ = execute(given)
        line |= {"acc": result.acc, "bwt": result.bwt, "worst": result.worst_over_time[-1]}
        line |= {"detection": result.detection, "last_server_lr": result.server_lrs[-1]}
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line)[:150], flush=True)


def _key(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("data", "stream", "variant", "seed"))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tables(lines: list[dict[str, Any]]) -> str:
    """Detection, and what it means for ACC and BWT: means over the seeds that there are."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        groups[line["data"], line["stream"], line["variant"]].append(line)
    head = "| data | stream | tasks | runs | borders found within 3 rounds | missed | mean delay | "
    text = [
        head + "false alarms per 100 rounds | last γ_G | ACC | BWT |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for data in DATA:
        for stream in STREAMS:
            for variant in VARIANTS:
                if runs := groups.get((data, stream, variant)):
                    cells = (data, stream, variant, str(len(runs)), _detection_cells(runs), _value_cells(runs))
                    text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


def _detection_cells(runs: list[dict[str, Any]]) -> str:
    found = [run["detection"] for run in runs if run["detection"]]
    if not found:
        return "– | – | – | –"
    delays = [delay for one in found for delay in one["delays"]]
    known = [delay for delay in delays if delay is not None]
    early, mean = sum(delay <= 3 for delay in known), f"{fmean(known):.1f}" if known else "–"
    false = fmean(one["false_alarms_per_100_rounds"] for one in found)
    return f"{early} of {len(delays)} | {delays.count(None)} | {mean} | {false:.2f}"


def _value_cells(runs: list[dict[str, Any]]) -> str:
    rate = fmean(run["last_server_lr"] for run in runs)
    return f"{rate:.2f} | {100 * fmean(run['acc'] for run in runs):.1f} | {100 * fmean(run['bwt'] for run in runs):.1f}"


def goal(lines: list[dict[str, Any]]) -> str:
    """Sharp borders and false alarms of the rule, on each data set that was not used for its threshold."""
    text = [
        "| data | γ_G | borders found within 3 rounds | false alarms per 100 rounds | goal |",
        "|---|---|---|---|---|",
    ]
    for data, (variant, rate) in product(DATA, (("loss", "1/i"), ("loss, γ_G = 1", "1"))):
        found = [
            line["detection"]
            for line in lines
            if (line["data"], line["stream"], line["variant"]) == (data, "sharp", variant)
        ]
        if data == TUNED_ON or not found:
            continue
        delays = [delay for one in found for delay in one["delays"]]
        early = sum(delay is not None and delay <= 3 for delay in delays)
        false = fmean(one["false_alarms_per_100_rounds"] for one in found)
        reached = "reached" if early == len(delays) and false <= 1 else "not reached"
        text.append(f"| {data} | {rate} | {early} of {len(delays)} | {false:.2f} | {reached} |")
    return "\n".join(text) + "\n"


def page(text: str, lines: list[dict[str, Any]]) -> str:
    """The text of the page with the tables of these runs between its marks."""
    for name, table in (("goal", goal(lines)), ("table", tables(lines))):
        text = replace_between(text, f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->", f"\n{table}\n")
    return text


def write_tables(folder: Path) -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), _lines(folder / "runs.jsonl")), "utf-8")


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[1] not in ("tune", "run", "table"):
        raise SystemExit(__doc__)
    command, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    if command == "run":
        run_all(folder, sys.argv[3:])
    else:
        {"tune": tune, "table": write_tables}[command](folder)


if __name__ == "__main__":
    main()
