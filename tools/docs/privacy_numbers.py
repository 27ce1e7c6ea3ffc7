"""Measure what differential privacy of whole sites costs, and write the table of docs/how-to/privacy.md.

Protocol, fixed before the runs: SPECIAL (λ = 0.1) with the MLP (32 hidden units) on two domains of digits-shift, 10
rounds per task, every client in every round, δ = 1e-5, client_lr = 0.1, 2 local epochs, iid partition, seeds 25 to 27.
Clip norms 0.3 and 1; the better mean ACC of the two is shown, which favours privacy a little. Run it from the
repository: ``python tools/docs/privacy_numbers.py`` (about ten minutes).
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from statistics import fmean

import fedspecial
from fedspecial.engine.aggregation.privacy import noise_for
from fedspecial.paper.marks import replace_between

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "privacy.md"
BEGIN, END = "<!-- begin: tools/docs/privacy_numbers.py -->", "<!-- end -->"
COMMON = {
    "method": "special", "domains": "paper,neon", "model": "mlp", "width": 32, "rounds": 10, "local_epochs": 2,
    "client_lr": 0.1, "partition": "iid", "min_per_client": 1, "eval_every": 0, "lam": 0.1,
}  # fmt: skip
ROUNDS, DELTA, CLIPS, SEEDS = 20, 1e-5, (0.3, 1.0), (25, 26, 27)


def mean_acc(folder: Path, clients: int, epsilon: float | None, clip: float) -> tuple[float, int]:
    private = {} if epsilon is None else {"dp_clip": clip, "dp_epsilon": epsilon, "dp_delta": DELTA}
    values, weights = [], 0
    for seed in SEEDS:
        out = folder / f"{clients}-{epsilon}-{clip}-{seed}"
        settings = {**COMMON, "clients": clients, "clients_per_round": clients, "seed": seed, **private}
        result = fedspecial.run("digits-shift", out=out, **settings)
        values.append(result.acc or 0.0)
        weights = sum(parameter.numel() for parameter in result.model.parameters())
    return fmean(values), weights


def rows(folder: Path) -> list[str]:
    lines = ["| sites | ε | noise multiplier z | noise on the mean, in units of C | ACC |", "|---|---|---|---|---|"]
    for clients in (3, 10, 100):
        plain, weights = mean_acc(folder, clients, None, 0.0)
        lines.append(f"| {clients} | no privacy | – | – | {100 * plain:.1f} % |")
        for epsilon in (100.0, 10.0, 1.0):
            noise = noise_for(epsilon, DELTA, ROUNDS, clients, clients)
            length = noise * math.sqrt(weights) / clients
            best = max(mean_acc(folder, clients, epsilon, clip)[0] for clip in CLIPS)
            lines.append(f"| {clients} | {epsilon:g} | {noise:.3g} | {length:.3g} | {100 * best:.1f} % |")
    return lines


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = "\n".join(rows(Path(folder)))
    page = replace_between(PAGE.read_text(encoding="utf-8"), BEGIN, END, f"\n{table}\n")
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
