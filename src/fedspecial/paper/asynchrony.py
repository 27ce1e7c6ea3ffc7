"""A study that is not in the paper: what waiting, over-selection and asynchronous steps cost and gain, with simulated
time, with and without the anchor.

The protocol was fixed before any two runs were compared: digits-shift at a small scale, three latency models with
median, mean or constant 1 s, buffer 2 of 4 clients, 6 clients asked with over-selection, the preset's λ. The target of
60 % was chosen from the accuracies of one synchronous FedAvg run with seed 25.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedspecial.core.events import of_kind
from fedspecial.metrics.simulated_time import staleness
from fedspecial.paper.spec import Row, Study

Events = list[dict[str, Any]]

TARGET = 0.6
LATENCIES: Mapping[str, tuple[tuple[str, Any], ...]] = {
    "exponential": (("latency", "exponential"),),
    "log-normal": (("latency", "lognormal"),),
    "fixed, clients differ": (("latency", "constant"), ("client_speed", 1.0)),
}
MODES: Mapping[str, tuple[tuple[str, Any], ...]] = {
    "synchronous": (),
    "over-selection": (("over_select", 6),),
    "asynchronous": (("mode", "async"), ("buffer", 2)),
}
ROWS = tuple(
    Row(method, (*latency, *mode), f", {mode_name}, {latency_name}")
    for latency_name, latency in LATENCIES.items()
    for mode_name, mode in MODES.items()
    for method in ("fedavg", "special")
)

STUDY = Study(
    "asynchrony",
    "Waiting, over-selection and asynchronous steps",
    "not in the paper: what an asynchronous server gains in time, and what it costs in accuracy",
    "how the server waits, the latency model, and the method",
    {"cpu": ("digits-shift-clock",)},
    ROWS,
    ("acc", "bwt", "time_to_target", "work_to_target", "simulated_time", "client_work", "staleness"),
    figure="asynchrony",
    note=f"Times are simulated seconds; the typical latency is 1 s. Time and work to target: the sum over the tasks "
    f"until the accuracy on the task that is learned reaches {TARGET:.0%}; work counts every client, lost work "
    "included. λ is the preset's.",
)


def to_target(events: Events, *, work: bool) -> float | None:
    """Simulated seconds, or seconds of client work, that the tasks take until their accuracy reaches the target; None
    if one of them does not."""
    started = of_kind(events, "run_started")
    names: list[str] = started[0]["tasks"] if started else []
    total = clock = base = spent = 0.0
    accuracy: dict[tuple[int, int], float] = {
        (e["task"], e["round"]): e["accuracy"][names[e["task"] - 1]]
        for e in of_kind(events, "round")
        if names[e["task"] - 1] in e["accuracy"]
    }
    done: set[int] = set()
    for event in events:
        match event["event"]:
            case "task_started":
                base = spent if work else clock
            case "update_lost":
                spent += event["worked"] or 0.0
            case "server_step":
                clock, spent = event["time"], spent + event["client_seconds"]
                task = event["task"]
                if task not in done and accuracy.get((task, event["round"]), 0.0) >= TARGET:
                    done.add(task)
                    total += (spent if work else clock) - base
    return total if names and len(done) == len(names) else None


def curve(events: Events) -> tuple[list[float], list[float]]:
    """Simulated time, and the mean accuracy over the domains seen so far, wherever it was evaluated."""
    times = {(e["task"], e["round"]): e["time"] for e in of_kind(events, "server_step")}
    rounds = [event for event in of_kind(events, "round") if event["accuracy"]]
    found = [(times[e["task"], e["round"]], fmean(e["accuracy"].values())) for e in rounds]
    return [time for time, _ in found], [100 * value for _, value in found]


def draw(runs: Mapping[str, list[Events]], colours: tuple[str, ...]) -> Figure:
    """Accuracy over simulated time (first seed), and below it how stale the updates of all seeds were.

    runs: key of a row → the event logs of its seeds
    """
    figure = Figure(figsize=(9.6, 6.0), layout="constrained")
    panels = figure.subplots(2, len(LATENCIES), squeeze=False, height_ratios=(3, 2))
    for column, (name, latency) in enumerate(LATENCIES.items()):
        upper, lower = panels[0][column], panels[1][column]
        for colour, (mode_name, mode) in zip(colours, MODES.items(), strict=False):
            for method, style in (("special", "-"), ("fedavg", ":")):
                logs = runs.get(Row(method, (*latency, *mode)).key, [])
                if logs:
                    label = f"{'SPECIAL' if method == 'special' else 'FedAvg'}, {mode_name}"
                    upper.plot(*curve(logs[0]), style, color=colour, linewidth=1.5, label=label)
        upper.set_title(name)
        upper.set_xlabel("simulated seconds")
        _histogram(lower, runs.get(Row("special", (*latency, *MODES["asynchronous"])).key, []), colours[2])
    panels[0][0].set_ylabel("mean accuracy, seen domains, %")
    panels[1][0].set_ylabel("share of updates, %")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _histogram(axes: Axes, logs: list[Events], colour: str) -> None:
    ages = [age for log in logs for age in staleness(log)]
    if ages:
        counts = [100 * ages.count(age) / len(ages) for age in range(max(ages) + 1)]
        axes.bar(range(len(counts)), counts, color=colour)
    axes.set_xlabel("staleness τ (SPECIAL, asynchronous)")
    axes.grid(axis="x", visible=False)
