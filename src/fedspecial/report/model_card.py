"""The model card, README.md, in the run directory of a finished model."""

from __future__ import annotations

from fedspecial.report.result import Result


def model_card(result: Result, *, command: str, licence: str, weights: int, model: str) -> str:
    """The model, its training data, its accuracy, and the command that reproduces it."""
    rows = "\n".join(
        f"| after {name} | " + " | ".join(f"{100 * value:.1f}" for value in row) + " |"
        for name, row in zip(result.tasks, result.matrix, strict=True)
    )
    return f"""# {model} trained with {result.method} on {result.benchmark}

A classifier with {weights:,} weights, trained by a simulated federation on {len(result.tasks)} domains in sequence:
{" → ".join(result.tasks)}. Clients kept no data of earlier domains, unless the method stores samples.

Each row shows the accuracy on all domains, in per cent, after training on one more of them.

| | {" | ".join(result.tasks)} |
|---|{"---|" * len(result.tasks)}
{rows}

ACC {percent(result.acc)} · BWT {percent(result.bwt)} · worst drop {percent(result.worst_drop)} (seed {result.seed})

- Weights: `model.safetensors`, SHA-256 of layout and float32 values `{result.model_sha256}`
- Command: `{command}`
- Licence of the data: {licence}
{certificate_line(result)}- Figures: `matrix.png`, `curves.png`; event log: `events.jsonl`
"""


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


def percent(value: float | None) -> str:
    return "not defined" if value is None else f"{100 * value:.2f}"
