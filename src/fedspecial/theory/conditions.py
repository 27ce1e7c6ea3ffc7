"""Checks whether the conditions of a statement are met, one by one, and suggests what to change.

>>> cfg = RoundConfig(8, 4, 5, 20, 4, server_lr=0.25, client_lr=0.001, lam=0.25)
>>> report = check_conditions(cfg, Constants(grad_bound=2.0, smoothness=4.0), "bkt")
>>> [row.name for row in report.rows if row.ok is None], report.ok
(['alignment > 0', 'gamma_G gamma_L <= eps lam G / ((K-1) L E B)'], None)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, cast

from fedspecial.theory.bounds import paper_statements as paper
from fedspecial.theory.bounds.convergence import contraction_factor
from fedspecial.theory.bounds.forgetting import bkt_step_max
from fedspecial.theory.constants import Constants, RoundConfig
from fedspecial.theory.validation import finite_or_none

Side = Callable[[RoundConfig, Constants], float]


@dataclass(frozen=True)
class Condition:
    """One condition: ``lhs <= rhs`` (``<`` where strict). ``ok`` is None when a constant is missing."""

    name: str
    lhs: float | None
    rhs: float | None
    ok: bool | None
    note: str = ""

    @property
    def margin(self) -> float | None:
        """lhs / rhs: at most 1 where the condition holds."""
        if self.lhs is None or self.rhs is None:
            return None
        return self.lhs / self.rhs if self.rhs != 0 else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "name": self.name,
            "lhs": self.lhs,
            "rhs": self.rhs,
            "ok": self.ok,
            "margin": finite_or_none(self.margin),
            "note": self.note,
        }


@dataclass(frozen=True)
class _Rule:
    """How to compute both sides of a condition, and the fields that must be known for it."""

    name: str
    lhs: Side
    rhs: Side
    needs: tuple[str, ...] = ()
    strict: bool = False
    note: str = ""


@dataclass(frozen=True)
class ConditionReport:
    """The conditions of one statement. ``ok``: True if all hold, False if one fails, otherwise None (unknown)."""

    which: str
    rows: tuple[Condition, ...]
    note: str = ""
    _inputs: tuple[RoundConfig, Constants, tuple[str, ...]] | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool | None:
        """All rows together."""
        if any(row.ok is False for row in self.rows):
            return False
        return None if any(row.ok is None for row in self.rows) else True

    def suggest(self) -> dict[str, float]:
        """The limit of each setting with the others unchanged: the largest ``client_lr`` and ``server_lr``, and the
        smallest ``lam``, for which the conditions hold.

        Conditions that the setting cannot satisfy alone, and unknown ones, are ignored in its search. A setting
        without a limit is omitted.
        """
        if self._inputs is None or self.which == "paper_rate":
            return {}
        found = {name: self._search(name) for name in ("client_lr", "server_lr", "lam")}
        return {name: value for name, value in found.items() if value is not None}

    def _search(self, setting: str) -> float | None:
        """Bisection on a log scale; every condition is monotone in each of the three settings."""
        assert self._inputs is not None
        cfg, consts, missing = self._inputs
        if setting in missing:
            return None

        def holding(value: float) -> set[str]:
            changed = replace(cfg, **cast(dict[str, Any], {setting: value}))
            return {row.name for row in _rows(self.which, changed, consts, missing) if row.ok}

        easy, hard = (1e30, 1e-30) if setting == "lam" else (1e-30, 1e30)
        fixable = holding(easy)
        if fixable <= holding(hard):
            return None
        easy, hard = math.log(easy), math.log(hard)
        for _ in range(60):  # to 1e-16 of the logarithm
            middle = (easy + hard) / 2
            easy, hard = (middle, hard) if fixable <= holding(math.exp(middle)) else (easy, middle)
        return math.exp(easy)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "statement": self.which,
            "ok": self.ok,
            "note": self.note,
            "conditions": [row.to_dict() for row in self.rows],
            "suggest": self.suggest(),
        }


def _task_two() -> _Rule:
    return _Rule(
        "K >= 2",
        lambda c, k: 2.0,
        lambda c, k: float(c.task_index),
        ("task_index",),
        note="earlier tasks must exist",
    )


def _anchor() -> _Rule:
    return _Rule("lam > 0, with an anchor", lambda c, k: 0.0, lambda c, k: c.effective_lam, ("lam", "task_index"), True)


def _alignment() -> _Rule:
    return _Rule(
        "alignment > 0",
        lambda c, k: 0.0,
        lambda c, k: k.need("alignment"),
        ("alignment",),
        True,
        note="must hold at every local iterate of every client, so it has to be measured in the run",
    )


_STEPS = ("server_lr", "client_lr", "local_steps")
_OLD = ("alignment", "old_grad_norm", "grad_bound", "smoothness", "task_index", "lam")

_RULES: dict[str, tuple[_Rule, ...]] = {
    "paper_bkt": (
        _task_two(), _anchor(), _alignment(),
        _Rule("gamma_L <= 2 eps G / (B L E t sqrt(M E / (lam^2 + 2 lam)))", lambda c, k: c.client_lr,
              paper.paper_bkt_client_lr_max, ("client_lr", "local_steps", "rounds", "num_clients", *_OLD),
              note="falls like 1/t; evaluated at t = T"),
        _Rule("gamma_G <= 1 / (sqrt(N) (K-1))", lambda c, k: c.server_lr,
              lambda c, k: paper.paper_bkt_server_lr_max(c),
              ("server_lr", "clients_per_round", "task_index")),
    ),
    "paper_convergence": (
        _task_two(), _anchor(),
        _Rule("gamma_G <= 1 / (K-1)", lambda c, k: c.server_lr, lambda c, k: 1 / c.num_old_tasks,
              ("server_lr", "task_index")),
        _Rule("gamma_L <= 1 / (8 E L)", lambda c, k: c.client_lr,
              lambda c, k: 1 / (8 * c.local_steps * k.smoothness),
              ("client_lr", "local_steps", "smoothness")),
        _Rule("gamma_G gamma_L <= (1+lam) / (3 E L)", lambda c, k: c.step,
              lambda c, k: (1 + c.lam) / (3 * c.local_steps * k.smoothness), (*_STEPS, "lam", "smoothness")),
        _Rule("c12 <= 1/2", paper.paper_c12, lambda c, k: 0.5,
              (*_STEPS, "lam", "smoothness", "task_index", "num_clients", "clients_per_round"),
              note="needed by the proof, not in the statement"),
    ),
    "paper_rate": (
        _task_two(), _anchor(),
        _Rule("gamma_G <= sqrt(N E) / ((K-1) lam L)", lambda c, k: c.server_lr,
              lambda c, k: paper.paper_rate_steps(c, k.smoothness)[0],
              ("server_lr", "clients_per_round", "local_steps", "lam", "smoothness", "task_index"),
              note="the corollary uses equality"),
        _Rule("gamma_L <= lam / (sqrt(K T) E L)", lambda c, k: c.client_lr,
              lambda c, k: paper.paper_rate_steps(c, k.smoothness)[1],
              ("client_lr", "local_steps", "rounds", "lam", "smoothness", "task_index"),
              note="the corollary uses equality"),
        _Rule("sqrt(N E) <= lam L", lambda c, k: math.sqrt(c.clients_per_round * c.local_steps),
              lambda c, k: c.lam * k.smoothness, ("clients_per_round", "local_steps", "lam", "smoothness"),
              note="otherwise its gamma_G violates gamma_G <= 1/(K-1) of Theorem 2"),
    ),
    "bkt": (
        _task_two(), _anchor(), _alignment(),
        _Rule("gamma_G gamma_L <= eps lam G / ((K-1) L E B)", lambda c, k: c.step, bkt_step_max,
              (*_STEPS, *_OLD),
              note="equivalent: the drift radius is at most eps G / ((K-1) L); lam must be fixed during the task"),
    ),
    "surrogate": (
        _Rule("gamma_G gamma_L E L <= 1", lambda c, k: c.pseudo_step * k.smoothness, lambda c, k: 1.0,
              (*_STEPS, "smoothness")),
    ),
    "contraction": (
        _Rule("(1 + gamma_G ((1 + gamma_L L)^E - 1)) / (1+lam) < 1",
              lambda c, k: contraction_factor(c, k.smoothness), lambda c, k: 1.0,
              (*_STEPS, "lam", "task_index", "smoothness"), True, note="noise-free, N = M"),
    ),
}  # fmt: skip

_NOTES = {
    "paper_bkt": "Theorem 1 holds (with a corrected proof); its slack shrinks with t because the allowed steps do.",
    "paper_convergence": "Theorem 2 is true but vacuous: its right side exceeds a bound that every iterate satisfies.",
    "paper_rate": "Corollary 1 does not hold for any constants.",
    "bkt": "BKT-S: backward transfer for every t, with a slack that falls like 1/N.",
    "surrogate": "Theorem S: stationarity of f_K + (mu/2)‖theta - anchor‖^2.",
    "contraction": "If this holds, a round without noise is a contraction, and its limit is unique.",
}

_NO_RATE = Condition(
    "the rate O(sqrt(E/(N T)))", None, None, False,
    "with these learning rates the drift radius tends to 0 with T, so the gradient keeps its value at the anchor",
)  # fmt: skip

STATEMENTS: tuple[str, ...] = tuple(_RULES)


def check_conditions(
    cfg: RoundConfig, consts: Constants, which: str, *, missing: Iterable[str] = ()
) -> ConditionReport:
    """Check the conditions of the statement ``which`` one by one.

    ``which`` is one of "paper_bkt", "paper_convergence", "paper_rate", "bkt", "surrogate", "contraction".
    A condition that needs a constant which is None, or a field named in ``missing`` (because its value in
    ``cfg`` or ``consts`` is a placeholder), has ``ok=None`` and its note names what is needed.
    "paper_rate" is never ok.
    """
    if which not in _RULES:
        raise ValueError(f"which must be one of {', '.join(STATEMENTS)}, got {which!r}")
    absent = tuple(missing)
    return ConditionReport(which, _rows(which, cfg, consts, absent), _NOTES[which], (cfg, consts, absent))


def _rows(which: str, cfg: RoundConfig, consts: Constants, missing: tuple[str, ...]) -> tuple[Condition, ...]:
    rows = tuple(_evaluate(rule, cfg, consts, missing) for rule in _RULES[which])
    return (*rows, _NO_RATE) if which == "paper_rate" else rows


def _evaluate(rule: _Rule, cfg: RoundConfig, consts: Constants, missing: tuple[str, ...]) -> Condition:
    unknown = [name for name in rule.needs if name in missing or getattr(consts, name, 0) is None]
    if unknown:
        return Condition(rule.name, None, None, None, f"needs {', '.join(unknown)}")
    try:
        left, right = float(rule.lhs(cfg, consts)), float(rule.rhs(cfg, consts))
    except ValueError as undefined:
        return Condition(rule.name, None, None, None, f"not defined: {undefined}")
    return Condition(rule.name, left, right, left < right if rule.strict else left <= right, rule.note)
