"""result.json: accuracy, forgetting and costs of a run, computed only from its events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from fedspecial.core.events import of_kind
from fedspecial.metrics import costs
from fedspecial.metrics import matrix as metrics


@dataclass(frozen=True)
class Result:
    """The result of a run. Accuracies are fractions, sizes are bytes, times are seconds; None means "not defined".

    matrix:               row i, column j: accuracy on domain j after task i
    acc:                  mean of the last row
    bwt:                  mean change on the earlier domains, from right after each was learned to the end
    worst_drop:           the most negative of these changes
    bytes_up, bytes_down: per sampled client and round
    bytes_once:           per client and task, for data that is not sent every round
    rounds_held:          rounds in which the model did not change, because too few valid updates arrived
    """

    method: str
    benchmark: str
    seed: int
    tasks: list[str]
    matrix: list[list[float]]
    acc: float
    bwt: float | None
    worst_drop: float | None
    forgetting: float | None
    rounds_to_best: int | None
    seconds_per_round: float
    seconds_between_tasks: float
    bytes_up: float
    bytes_down: float
    bytes_once: float
    client_memory_bytes: int
    client_memory_paper_bytes: int
    lam: float | None
    mu: float | None
    drift: float | None
    refused_updates: int
    rounds_held: int
    model_sha256: str
    matrix_masked: list[list[float]] | None = None
    acc_masked: float | None = None
    bwt_masked: float | None = None
    certificates: list[dict[str, Any]] | None = None
    """For each task the drift and the bounds on it; None if no task had an anchor at the server."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def result_of(events: Sequence[dict[str, Any]]) -> Result:
    """Compute the result of a finished run."""
    started = of_kind(events, "run_started")[0]
    rounds = of_kind(events, "round")
    finished = of_kind(events, "task_finished")
    matrix = metrics.check([row["accuracy"] for row in finished])
    masked = None
    if finished[0]["accuracy_masked"] is not None:
        masked = metrics.check([row["accuracy_masked"] for row in finished])
    anchored = [r for r in rounds if r["lam"] is not None]
    issued = [event["summary"] for event in of_kind(events, "certificate")]
    return Result(
        method=started["method"],
        benchmark=started["benchmark"],
        seed=started["seed"],
        tasks=started["tasks"],
        matrix=[list(row) for row in matrix],
        acc=metrics.average_accuracy(matrix),
        bwt=metrics.backward_transfer(matrix),
        worst_drop=metrics.worst_drop(matrix),
        forgetting=metrics.forgetting(matrix),
        rounds_to_best=costs.rounds_to_best(rounds, started["tasks"]),
        seconds_per_round=costs.seconds_per_round(rounds),
        seconds_between_tasks=costs.seconds_between_tasks(of_kind(events, "task_boundary"), len(started["tasks"])),
        bytes_up=costs.bytes_per_client(rounds, "up"),
        bytes_down=costs.bytes_per_client(rounds, "down"),
        bytes_once=costs.bytes_once(rounds, of_kind(events, "query"), started["clients"], len(started["tasks"])),
        client_memory_bytes=costs.largest(rounds, "client_memory_bytes"),
        client_memory_paper_bytes=costs.largest(rounds, "client_memory_paper_bytes"),
        lam=fmean(r["lam"] for r in anchored) if anchored else started["hyperparameters"].get("lam"),
        mu=_mean_where_defined(anchored, "mu"),
        drift=rounds[-1]["drift"],
        refused_updates=len(of_kind(events, "update_refused")),
        rounds_held=sum(r["held"] for r in rounds),
        model_sha256=of_kind(events, "run_finished")[0]["model_sha256"],
        matrix_masked=None if masked is None else [list(row) for row in masked],
        acc_masked=None if masked is None else metrics.average_accuracy(masked),
        bwt_masked=None if masked is None else metrics.backward_transfer(masked),
        certificates=issued if any(summary["anchored"] for summary in issued) else None,
    )


def _mean_where_defined(rounds: Sequence[dict[str, Any]], field: str) -> float | None:
    values = [r[field] for r in rounds if r[field] is not None]
    return fmean(values) if values else None
