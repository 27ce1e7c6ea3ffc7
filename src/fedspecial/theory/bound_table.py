"""The values of all bounds for given inputs, as rows of a table. A row without a value names what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from fedspecial.theory import bounds, lambda_rules
from fedspecial.theory.constants import Constants, RoundConfig
from fedspecial.theory.validation import finite_or_none


@dataclass(frozen=True)
class BoundValue:
    """One bound: its name, its value or None, and a note on its meaning or on what is missing."""

    group: str
    name: str
    value: float | None
    note: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"group": self.group, "name": self.name, "value": finite_or_none(self.value), "note": self.note}


Compute = Callable[[RoundConfig, Constants], float]
_ALL = ("server_lr", "client_lr", "local_steps", "lam", "task_index")
_SIZES = ("num_clients", "clients_per_round", "rounds")
_B, _L = ("grad_bound",), ("smoothness",)


def _psi(name: str) -> Compute:
    return lambda c, k: float(getattr(bounds.paper_psi(c, k), name))


def _theorem_s(name: str) -> Compute:
    return lambda c, k: float(getattr(bounds.surrogate_bound(c, k), name))


def _table() -> Iterator[tuple[str, str, tuple[str, ...], Compute, str]]:
    """(group, name, fields that must not be placeholders, function, note)."""
    drift, paper, forgetting, rounds = "drift", "paper, as printed", "earlier tasks", "Theorem S"
    everything = (*_ALL, *_SIZES, *_B, *_L)
    yield drift, "drift_radius", (*_ALL, *_B), lambda c, k: bounds.drift_radius(c, k.grad_bound), "for all rounds"
    yield (
        drift,
        "drift_radius at T",
        (*_ALL, *_B, "rounds"),
        lambda c, k: bounds.drift_radius(c, k.grad_bound, c.rounds),
        "after T rounds",
    )
    yield drift, "half_life", ("lam",), lambda c, k: bounds.half_life(c.lam), "rounds until a delta has half its weight"
    yield (
        forgetting,
        "forgetting_cap",
        (*_ALL, *_B, *_L),
        lambda c, k: bounds.forgetting_cap(
            k.need("old_grad_norm"), bounds.drift_radius(c, k.grad_bound), c.num_old_tasks, k.smoothness
        ),
        "at the drift radius",
    )
    yield forgetting, "bkt_step_max", (*_ALL, *_B, *_L), bounds.bkt_step_max, "largest server_lr * client_lr (BKT-S)"
    yield forgetting, "lam_for_bkt", (*_ALL, *_B, *_L), lambda_rules.lam_for_bkt, "smallest lam (BKT-S)"
    yield forgetting, "bkt_slack", (*_ALL, *_SIZES, *_L), lambda c, k: bounds.bkt_slack(c, k), "for all rounds (BKT-S)"
    yield rounds, "mu", _ALL, lambda c, k: bounds.surrogate(c).mu, "lam / (server_lr * client_lr * local_steps)"
    yield rounds, "eta", _ALL, lambda c, k: bounds.surrogate(c).eta, "step size of SGD on the surrogate"
    for term in ("optimisation", "local_bias", "variance", "total"):
        yield rounds, term, everything, _theorem_s(term), "mean squared gradient of the surrogate"
    yield (
        rounds,
        "contraction_factor",
        (*_ALL, *_L),
        lambda c, k: bounds.contraction_factor(c, k.smoothness),
        "below 1: the limit is unique",
    )
    yield paper, "paper_drift_bound_sq", (*_ALL, *_B), lambda c, k: bounds.paper_drift_bound_sq(c, k.grad_bound), ""
    yield paper, "paper_bkt_client_lr_max", everything, bounds.paper_bkt_client_lr_max, "Theorem 1, t = T"
    yield (
        paper,
        "paper_bkt_server_lr_max",
        ("task_index", "clients_per_round"),
        lambda c, k: bounds.paper_bkt_server_lr_max(c),
        "Theorem 1",
    )
    yield paper, "paper_bkt_slack", everything, bounds.paper_bkt_slack, "Theorem 1, t = T"
    for field in fields(bounds.PsiTerms):
        yield paper, f"Psi: {field.name}", everything, _psi(field.name), "Theorem 2"
    yield paper, "Psi", everything, _psi("total"), "Theorem 2: the sum of the terms"
    yield (
        paper,
        "every_iterate_cap",
        (*_ALL, *_B, *_L),
        bounds.every_iterate_cap,
        "holds for every iterate without optimisation; smaller than Psi",
    )
    yield paper, "gap term", everything, bounds.paper_convergence_gap_term, "Theorem 2"
    yield paper, "paper_convergence_bound", everything, bounds.paper_convergence_bound, "Theorem 2"  # fmt: skip


def all_bounds(cfg: RoundConfig, consts: Constants, missing: Iterable[str] = ()) -> list[BoundValue]:
    """All bounds; ``missing`` names the fields of ``cfg`` and ``consts`` that are placeholders."""
    absent = set(missing)
    rows = []
    for group, name, needs, compute, note in _table():
        unknown = [field for field in needs if field in absent]
        if unknown:
            rows.append(BoundValue(group, name, None, f"needs {', '.join(unknown)}"))
            continue
        try:
            rows.append(BoundValue(group, name, float(compute(cfg, consts)), note))
        except ValueError as reason:
            rows.append(BoundValue(group, name, None, _short_reason(str(reason))))
    return rows


def _short_reason(reason: str) -> str:
    name, mark, _ = reason.partition(" is needed")
    return f"needs {name}" if mark else f"not defined: {reason}"
