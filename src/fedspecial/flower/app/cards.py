"""What the cards of a federation's models say: the sites, their answers, the rounds, inputs and classes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fedspecial.core.events import TaskFinished
from fedspecial.core.privacy import PrivacyCharged, privacy_lines, privacy_summary
from fedspecial.engine.run import Run
from fedspecial.flower.app.plan import FederationPlan
from fedspecial.flower.governance.audit import read_lines
from fedspecial.runs.execute import Origin


def federation_origin(plan: FederationPlan, run: Run) -> Origin:
    """For the card of the run directory."""
    sites = f"a federation of {len(plan.sites)} sites ({', '.join(plan.sites)}) on Flower"
    if plan.data is None:
        sites += ", a trial in which the benchmark was partitioned over the sites,"
        licence = run.federation.benchmark.licence
    else:
        licence = "the sites' own data, which the server never sees"
    return Origin(sites, "`flwr run` with the settings in `config.yaml`", licence)


def published_card(
    plan: FederationPlan, run: Run, log: Path, event: TaskFinished, charged: PrivacyCharged | None
) -> str:
    """For a published model, from the run and its audit log."""
    tasks, main = run.federation.benchmark.task_names, run.objective.main
    in_percent = (main.low, main.high) == (0, 1)
    accuracies = [
        f"- {name}: {'unknown' if value is None else f'{100 * value:.2f} %' if in_percent else f'{value:.4g}'}"
        for name, value in zip(tasks, event.accuracy, strict=True)
    ]
    lines = [
        f"# {run.config.model} after task {event.task}, {event.name}",
        "",
        f"Trained with {run.method.name} by {federation_origin(plan, run).trained_by.removesuffix(',')}.",
        f"{main.name.capitalize()} over all test samples of all sites:",
        "",
        *accuracies,
        "",
        "## Inputs and classes",
        "",
        *(f"- {line}" for line in run.federation.benchmark.schema.describe()),
        "",
        *_rounds_section(plan, log),
    ]
    if charged is not None:
        lines += ["", "## Differential privacy", "", *(f"- {line}" for line in privacy_lines(_spent(charged)))]
    return "\n".join(lines)


def _spent(charged: PrivacyCharged) -> dict[str, object]:
    return privacy_summary(vars(charged))


def _rounds_section(plan: FederationPlan, log: Path) -> list[str]:
    """Completed rounds per task, and how often each site's update was used; a repeated round counts once."""
    last: dict[tuple[int, int], dict[str, object]] = {}
    for line in read_lines(log):
        if line["event"] == "round":
            last[line["task"], line["round"]] = line
    completed = {key: line for key, line in last.items() if line["outcome"] == "completed"}
    rounds = Counter(task for task, _ in completed)
    asked: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for line in completed.values():
        requested, updates = line["requested"], line["updates"]
        assert isinstance(requested, list)
        assert isinstance(updates, list)
        asked.update(map(str, requested))
        used.update(str(update["site"]) for update in updates)
    return [
        "## Rounds and answers",
        "",
        *(f"- task {task}: {number} completed rounds" for task, number in sorted(rounds.items())),
        "",
        "| site | requests | updates used |",
        "|---|---|---|",
        *(f"| {site} | {asked[site]} | {used[site]} |" for site in plan.sites),
    ]
