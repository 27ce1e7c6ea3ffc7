"""The model card, README.md, in the run directory of a finished model."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from fedspecial.core.privacy import privacy_lines
from fedspecial.report.result import Result
from fedspecial.report.scale import title_of

_TASKS = {
    ("image", "classification"): "image-classification",
    ("text", "classification"): "text-classification",
    ("table", "classification"): "tabular-classification",
    ("table", "regression"): "tabular-regression",
    ("image", "segmentation"): "image-segmentation",
}
"""The hub's names for what a model does, by kind of data and objective."""


SIMULATED = "a simulated federation"
MAX_CLASSES = 20
"""Metrics of single classes are on the card up to this many."""


def model_card(
    result: Result,
    *,
    command: str,
    licence: str,
    weights: int,
    model: str,
    kind: str,
    inputs: Sequence[str],
    trained_by: str = SIMULATED,
    classes: Sequence[str] = (),
) -> str:
    """The model, its training data, its accuracy, and how to train it again; a valid card of the Hugging Face hub.

    inputs:     what the model needs to know about its inputs, and its classes, a line each
    trained_by: where the clients were, in words
    classes:    the names of the model's outputs, for metrics that have a value for each
    """
    scale, text = result.scale, result.scale.text
    what = "A classifier" if result.objective == "classification" else f"A model (objective: {result.objective})"
    rows = "\n".join(
        f"| after {_cell(name)} | " + " | ".join(map(scale.cell, row)) + " |"
        for name, row in zip(result.rows, result.matrix, strict=True)
    )
    return f"""---
{metadata(result, model, kind)}---

# {model} trained with {result.method} on {result.benchmark}

{what} with {weights:,} weights, trained by {trained_by} on {len(result.tasks)} domains in sequence:
{" → ".join(result.tasks)}. Clients kept no data of earlier domains, unless the method stores samples.

Each row shows the {scale.label} on all domains, after training on one more of them.

| | {" | ".join(map(_cell, result.tasks))} |
|---|{"---|" * len(result.tasks)}
{rows}

ACC {text(result.acc)} · BWT {text(result.bwt)} · worst drop {text(result.worst_drop)} (seed {result.seed})
{metrics_section(result, classes)}{privacy_section(result)}{warning_lines(result)}
- Weights: `model.safetensors`, SHA-256 of layout and float32 values `{result.model_sha256}`
{"".join(f"- {line}" + chr(10) for line in inputs)}- Made by: {command}
- Licence of the data: {licence}
{certificate_line(result)}- Figures: `matrix.png`, `curves.png`; event log: `events.jsonl`
"""


def metadata(result: Result, model: str, kind: str) -> str:
    """The part of the card that the hub reads, as YAML: what the model is, and its accuracy on every domain."""
    task = {"type": _TASKS.get((kind, result.objective), "other")}
    scores = [
        ("ACC", result.acc),
        *((f"{result.scale.title} on {n}", v) for n, v in zip(result.tasks, result.matrix[-1], strict=True)),
    ]
    metrics = [{"type": result.scale.name, "name": name, "value": value} for name, value in scores if value is not None]
    dataset = {"name": result.benchmark, "type": result.benchmark}
    content = {
        "library_name": "fedspecial",
        "tags": ["federated-learning", "continual-learning", "domain-incremental-learning", result.method],
        "pipeline_tag": task["type"],
        "model-index": [{"name": model, "results": [{"task": task, "dataset": dataset, "metrics": metrics}]}],
    }
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def privacy_section(result: Result) -> str:
    """A part of the card about differential privacy; empty without it."""
    if result.privacy is None:
        return ""
    return "".join(["\n## Differential privacy\n\n", *(f"- {line}\n" for line in privacy_lines(result.privacy))])


def warning_lines(result: Result) -> str:
    """A part of the card with the warnings of the run; empty if there are none."""
    return "".join(["\n## Warnings\n\n", *(f"- {text}\n" for text in result.warnings)]) if result.warnings else ""


def certificate_line(result: Result) -> str:
    """In how many anchored tasks the drift stayed below its bounds; empty if there was no anchor."""
    if result.certificates is None:
        return ""
    anchored = [task for task in result.certificates if task["anchored"]]
    kept = sum(task["status"] == "holds" for task in anchored)
    return (
        f"- Certificate: distance to the anchor below its bounds in {kept} of {len(anchored)} anchored tasks "
        "(weights only): `drift.png`, `certificates` in `result.json`\n"
    )


def metrics_section(result: Result, classes: Sequence[str] = ()) -> str:
    """Further metrics at the end of the run as a table; with many classes, those of each are only in result.json."""
    if not result.metrics:
        return ""
    lines = []
    for name, rows in result.metrics.items():
        if not any(isinstance(value, list) for value in rows[-1]):
            lines.append(f"| {_cell(title_of(name))} | {' | '.join(map(plain, rows[-1]))} |")
        elif len(classes) <= MAX_CLASSES:
            for number, label in enumerate(classes):
                values = [value[number] if value and number < len(value) else None for value in rows[-1]]
                lines.append(f"| {_cell(f'{title_of(name)}: {label}')} | {' | '.join(map(plain, values))} |")
    if not lines:
        return ""
    notes = "".join(f"\n{note}.\n" for note in result.notes)
    return f"""
Further metrics after the last task, as fractions or in the unit of the targets:

| | {" | ".join(map(_cell, result.tasks))} |
|---|{"---|" * len(result.tasks)}
{chr(10).join(lines)}
{notes}"""


def _cell(text: str) -> str:
    """A name in a table of Markdown, whose columns are separated by vertical bars."""
    return text.replace("|", r"\|")


def plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
