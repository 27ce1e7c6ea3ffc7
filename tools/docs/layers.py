"""Measure and draw where forgetting sits, layer by layer (docs/science/anchor.md).

    python tools/docs/layers.py measure OUT.json BENCHMARK METHOD [KEY=VALUE …]     one run; adds it to the file
    python tools/docs/layers.py draw OUT.json FIGURE.png                            all runs of the file

For every domain but the last: the drift of each layer between the end of its task and the end of the run, and the
accuracy on it when a layer's weights, or its BatchNorm statistics, are put back to those at the end of its task. The
model predicts with one set of statistics, those of the last task, also where the method has a bank.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from fedspecial.config import merge_settings, resolve
from fedspecial.config.sources import parse_settings
from fedspecial.core.events import Event
from fedspecial.core.vector import Kind
from fedspecial.engine import loop
from fedspecial.engine.evaluate import summarize
from fedspecial.engine.run import Run
from fedspecial.metrics.layers import Part, drift, parts_of, put_back
from fedspecial.runs.build import prepare
from fedspecial.runs.data import load_benchmark, make_federation
from fedspecial.runs.devices import torch_settings

COLOURS: dict[Kind, str] = {"weight": "#0072b2", "buffer": "#d55e00"}
NAMES: dict[Kind, str] = {"weight": "weights", "buffer": "BatchNorm statistics"}
METHODS = {"fedavg": "FedAvg", "special-plus": "SPECIAL+"}
INK = "#222222"


def measure(benchmark: str, method: str, given: list[str]) -> dict[str, Any]:
    """One run, and what its layers did."""
    common = {"benchmark": benchmark, "method": method, "eval_every": 0}
    with tempfile.TemporaryDirectory() as folder:
        resolved = resolve(merge_settings({**common, **parse_settings(given)}))
        federation = make_federation(resolved.config, load_benchmark(resolved.config, resolved.objective.targets))
        ends: list[Tensor] = []

        def listen(event: Event) -> None:
            if event.event == "task_finished":
                ends.append(run.vector.clone())

        run = prepare(Path(folder), resolved, federation, None, None, (listen,))
        with contextlib.closing(run.log), torch_settings(run.config):
            loop.learn(run)
            found = _layers(run, ends)
    return {**common, "settings": given, **found}


def _layers(run: Run, ends: list[Tensor]) -> dict[str, Any]:
    parts, last, tasks = parts_of(run.model.layout), ends[-1], range(1, len(ends))

    def accuracy(task: int, vector: Tensor) -> float:
        run.model.load(vector)
        run.model.module.eval()
        scoring, test = run.objective.scoring(complete=False), run.federation.domain(task).test
        summary = summarize(run.model, test, run.federation.benchmark, vector.device, scoring)
        return float(scoring.scores(summary)["accuracy"])  # type: ignore[arg-type]

    def restored(chosen: list[Part]) -> float:
        return fmean(accuracy(task, put_back(chosen, ends[task - 1], last)) for task in tasks)

    return {
        "end": restored([]),
        "then": restored(parts),
        **{kind: restored([part for part in parts if part.kind == kind]) for kind in NAMES},
        "parts": [
            {
                "layer": part.layer,
                "kind": part.kind,
                "drift": fmean(drift(part, ends[task - 1], last) for task in tasks),
                "restored": restored([part]),
            }
            for part in parts
        ],
    }


def draw(runs: list[dict[str, Any]]) -> Figure:
    """For each benchmark and method, two panels: drift, and what putting a layer back gains; means over its runs."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        run["parts"] = [{**part, "gain": 100 * (part["restored"] - run["end"])} for part in run["parts"]]
        groups.setdefault((run["benchmark"], run["method"]), []).append(run)
    figure = Figure(figsize=(9.6, 0.9 + 2.2 * len(groups)), layout="constrained")
    rows = np.atleast_2d(figure.subplots(len(groups), 2))
    for (left, right), ((benchmark, method), members) in zip(rows, groups.items(), strict=True):
        _bars(left, members, "drift")
        left.set_title(f"{METHODS.get(method, method)}, {benchmark}", fontsize=9, loc="left")
        left.set_ylabel("relative drift", fontsize=8)
        _bars(right, members, "gain")
        end, then = (100 * fmean(run[key] for run in members) for key in ("end", "then"))
        right.set_title(
            f"earlier domains: {then:.1f} % after their task, {end:.1f} % at the end", fontsize=9, loc="left"
        )
        right.set_ylabel("points gained, put back", fontsize=8)
        _lines(right, members)
    figure.legend(*rows[0][1].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    return figure


def _bars(axes: Axes, members: list[dict[str, Any]], what: str) -> None:
    layers = list(dict.fromkeys(part["layer"] for part in members[0]["parts"]))
    layers.sort(key=_depth)
    for kind, shift in (("weight", -0.2), ("buffer", 0.2)):
        places, heights = [], []
        for number, layer in enumerate(layers):
            values = [
                part[what] for run in members for part in run["parts"] if (part["layer"], part["kind"]) == (layer, kind)
            ]
            if values:
                places.append(number + shift)
                heights.append(fmean(values))
        hatch = None if kind == "weight" else "//"
        axes.bar(places, heights, 0.38, color=COLOURS[kind], label=NAMES[kind], hatch=hatch)
    axes.set_xticks(range(len(layers)), layers, fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _depth(layer: str) -> tuple[int, str]:
    """The order of the forward pass in the small CNN: conv1, bn1, conv2, …, hidden, fc."""
    digits = "".join(letter for letter in layer if letter.isdigit())
    return (int(digits) if digits else 99 + (layer == "fc"), "" if layer.startswith("conv") else layer)


def _lines(axes: Axes, members: list[dict[str, Any]]) -> None:
    lines = (
        ("weight", "all weights", "--", COLOURS["weight"]),
        ("buffer", "all statistics", "-.", COLOURS["buffer"]),
        ("then", "everything", ":", INK),
    )
    axes.axhline(0, color=INK, linewidth=0.8)
    for key, label, style, colour in lines:
        gain = 100 * fmean(run[key] - run["end"] for run in members)
        axes.axhline(gain, linestyle=style, color=colour, linewidth=1.4, label=label)


def main() -> None:
    command, file, *rest = sys.argv[1:]
    path = Path(file)
    runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    if command == "measure":
        runs.append(measure(rest[0], rest[1], rest[2:]))
        path.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    else:
        draw(runs).savefig(rest[0], dpi=110)


if __name__ == "__main__":
    main()
