"""The model card that lies beside a finished model."""

from __future__ import annotations

from fedspecial.report.result import Result


def model_card(result: Result, *, command: str, licence: str, weights: int, model: str) -> str:
    """What the model is, what it learned from, how well it does, and how to make it again."""
    rows = "\n".join(
        f"| after {name} | " + " | ".join(f"{100 * value:.1f}" for value in row) + " |"
        for name, row in zip(result.tasks, result.matrix, strict=True)
    )
    return f"""# {model} trained with {result.method} on {result.benchmark}

A classifier of {weights:,} weights, learned by a simulated federation on {len(result.tasks)} domains one after another:
{" → ".join(result.tasks)}. No data was kept from one domain to the next unless the method says so.

| accuracy in per cent | {" | ".join(result.tasks)} |
|---|{"---|" * len(result.tasks)}
{rows}

ACC {percent(result.acc)} · BWT {percent(result.bwt)} · worst drop {percent(result.worst_drop)} (seed {result.seed})

- Weights: `model.safetensors`, SHA-256 of layout and float32 values `{result.model_sha256}`
- Made by: `{command}`
- Licence of the data: {licence}
{certificate_line(result)}- Pictures: `matrix.png`, `curves.png`; everything that happened: `events.jsonl`
"""


def certificate_line(result: Result) -> str:
    """How many anchored tasks kept under their caps, or nothing where there is no anchor."""
    if result.certificates is None:
        return ""
    anchored = [task for task in result.certificates if task["anchored"]]
    kept = sum(task["status"] == "holds" for task in anchored)
    return (
        f"- Certificate: distance to the anchor under its caps in {kept} of {len(anchored)} anchored tasks "
        "(weights only): `drift.png`, `certificates` in `result.json`\n"
    )


def percent(value: float | None) -> str:
    return "not defined" if value is None else f"{100 * value:.2f}"
