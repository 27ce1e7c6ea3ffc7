"""Every bound for given inputs, as rows of a table; what cannot be computed says what it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from fedspecial.theory import bounds, rules
from fedspecial.theory._validate import plain
from fedspecial.theory.constants import Constants, RoundConfig


@dataclass(frozen=True)
class Value:
    """One bound: its name, its value or None, and what it says or what is missing."""

    group: str
    name: str
    value: float | None
    note: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"group": self.group, "name": self.name, "value": plain(self.value), "note": self.note}


Compute = Callable[[RoundConfig, Constants], float]
_ALL = ("server_lr", "client_lr", "local_steps", "lam", "task_index")
_SIZES = ("num_clients", "clients_per_round", "rounds")
_B, _L = ("grad_bound",), ("smoothness",)


def _psi(name: str) -> Compute:
    return lambda c, k: float(getattr(bounds.paper_psi(c, k), name))


def _theorem_s(name: str) -> Compute:
    return lambda c, k: float(getattr(bounds.surrogate_bound(c, k), name))


def _table() -> Iterator[tuple[str, str, tuple[str, ...], Compute, str]]:
    """(group, name, placeholders it must not use, function, note)."""
    drift, paper, transfer, rounds = "drift", "paper, as printed", "earlier tasks", "Theorem S"
    everything = (*_ALL, *_SIZES, *_B, *_L)
    yield drift, "drift_radius", (*_ALL, *_B), lambda c, k: bounds.drift_radius(c, k.grad_bound), "for all rounds"
    yield (
        drift,
        "drift_radius at T",
        (*_ALL, *_B, "rounds"),
        lambda c, k: bounds.drift_radius(c, k.grad_bound, c.rounds),
        "after T rounds",
    )
    yield drift, "half_life", ("lam",), lambda c, k: bounds.half_life(c.lam), "rounds until a delta counts half"
    yield (
        transfer,
        "forgetting_cap",
        (*_ALL, *_B, *_L),
        lambda c, k: bounds.forgetting_cap(
            k.need("old_grad_norm"), bounds.drift_radius(c, k.grad_bound), c.num_old_tasks, k.smoothness
        ),
        "at the drift radius",
    )
    yield transfer, "bkt_step_max", (*_ALL, *_B, *_L), bounds.bkt_step_max, "largest server_lr * client_lr (BKT-S)"
    yield transfer, "lam_for_bkt", (*_ALL, *_B, *_L), rules.lam_for_bkt, "smallest lam (BKT-S)"
    yield transfer, "bkt_slack", (*_ALL, *_SIZES, *_L), lambda c, k: bounds.bkt_slack(c, k), "for all rounds (BKT-S)"
    yield rounds, "mu", _ALL, lambda c, k: bounds.surrogate(c).mu, "lam / (server_lr * client_lr * local_steps)"
    yield rounds, "eta", _ALL, lambda c, k: bounds.surrogate(c).eta, "step of the surrogate's SGD"
    for term in ("optimisation", "local_bias", "variance", "total"):
        yield rounds, term, everything, _theorem_s(term), "mean squared gradient of the surrogate"
    yield (
        rounds,
        "contraction_factor",
        (*_ALL, *_L),
        lambda c, k: bounds.contraction_factor(c, k.smoothness),
        "below 1: unique limit",
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
        "holds without optimisation; below Psi",
    )
    yield paper, "gap term", everything, bounds.paper_convergence_gap_term, "Theorem 2"
    yield paper, "paper_convergence_bound", everything, bounds.paper_convergence_bound, "Theorem 2"  # fmt: skip


def all_bounds(cfg: RoundConfig, consts: Constants, missing: Iterable[str] = ()) -> list[Value]:
    """Every bound; ``missing`` names fields of ``cfg`` and ``consts`` that only hold a place."""
    absent = set(missing)
    rows = []
    for group, name, needs, compute, note in _table():
        lacking = [field for field in needs if field in absent]
        if lacking:
            rows.append(Value(group, name, None, f"needs {', '.join(lacking)}"))
            continue
        try:
            rows.append(Value(group, name, float(compute(cfg, consts)), note))
        except ValueError as reason:
            rows.append(Value(group, name, None, _shortly(str(reason))))
    return rows


def _shortly(reason: str) -> str:
    name, mark, _ = reason.partition(" is needed")
    return f"needs {name}" if mark else f"not defined: {reason}"
