"""The bounds that a method's docstring gives for its hyperparameters are those that are enforced."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any, NamedTuple

import pytest
from pydantic import ValidationError

from fedspecial import methods

# "server_batch: Images per batch at the server, ≥ 2." and "lam: ..., in [0, 1]; ..." in the docstring's "Args".
BOUND = re.compile(r"^ +(\w+): [^\n]*?(?:(≥|>) ([\d.]+)|in \[([\d.]+), ([\d.]+)([\])]))", re.MULTILINE)


# Runs and tables that do not set a hyperparameter depend on these.
DEFAULTS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {"mu_prox": 0.01},
    "fedcil": {
        "importance": 0.5, "consistency": 1.0, "server_iterations": 50, "server_batch": 32, "gan_every": 1,
        "gan_lr": 1e-4, "gan_betas": (0.5, 0.99), "gan_weight_decay": 1e-5, "generator_width": 64, "gan_size": 64,
    },
    "mfcl": {
        "w_div": 0.5, "w_bn": 1.0, "w_pr": 0.01, "w_ft": 0.2, "w_kd": 0.2, "tau": 1000.0, "iterations": 100,
        "generator_lr": 1e-3, "synthetic": 128, "generator_width": 128, "latent": 1000,
    },
    "srfdil": {
        "cache": 1120, "lam": 0.5, "scores": "prototypes", "choice": "uniform", "passes": 3, "personal_lr": 0.01,
    },
    "pfeddil": {
        "threshold": 0.8, "max_slots": 3, "kappa": 1.0, "signal": "correctness", "aux_gradient": False,
        "pool": "personal", "new_slot": "initial",
    },
    "flwf2t": {"alpha_ce": 0.5, "beta_past": 0.25, "temperature": 2.0, "teacher": "own"},
    "special-c": {"lam": 0.2, "prox": "step_scaled", "halve_lambda": False},
    "special": {"lam": 0.1, "mu": None, "anchor_first_task": False},
}  # fmt: skip


class Bounds(NamedTuple):
    method: str
    field: str
    low: float
    low_allowed: bool
    high: float | None
    high_allowed: bool

    @property
    def default(self) -> Any:
        return {f.name: f.default for f in dataclasses.fields(methods.find(self.method))}[self.field]

    def accepts(self, value: float) -> bool:
        others = {"alpha_ce": 0.0, "beta_past": 0.0} if self.method == "flwf2t" else {}  # their sum is bounded as well
        given = (value, value) if isinstance(self.default, tuple) else value
        try:
            methods.find(self.method)(**{**others, self.field: given})
        except (ValidationError, ValueError):
            return False
        return True


def documented() -> list[Bounds]:
    found = []
    for name in methods.names():
        for field, sign, low, start, end, bracket in BOUND.findall(inspect.getdoc(methods.find(name)) or ""):
            if sign:
                found.append(Bounds(name, field, float(low), sign == "≥", None, True))
            else:
                found.append(Bounds(name, field, float(start), True, float(end), bracket == "]"))
    return found


@pytest.mark.parametrize("name", DEFAULTS)
def test_hyperparameters_have_their_published_defaults(name: str) -> None:
    assert dataclasses.asdict(methods.find(name)()) == DEFAULTS[name]


def test_every_number_has_documented_bounds() -> None:
    named = {(bounds.method, bounds.field) for bounds in documented()}
    numbers = {
        (name, field.name)
        for name in methods.names()
        for field in dataclasses.fields(methods.find(name))
        if isinstance(field.default, int | float | tuple) and not isinstance(field.default, bool)
    }
    assert numbers <= named


@pytest.mark.parametrize("bounds", documented(), ids=lambda bounds: f"{bounds.method}-{bounds.field}")
def test_a_hyperparameter_is_accepted_within_its_documented_bounds_and_refused_outside(bounds: Bounds) -> None:
    if isinstance(bounds.default, int):
        assert bounds.accepts(int(bounds.low))
        assert not bounds.accepts(int(bounds.low) - 1)
        return
    step = 1e-6
    assert bounds.accepts(bounds.low) == bounds.low_allowed
    assert bounds.accepts(bounds.low + step)
    assert not bounds.accepts(bounds.low - step)
    if bounds.high is not None:
        assert bounds.accepts(bounds.high) == bounds.high_allowed
        assert bounds.accepts(bounds.high - step)
        assert not bounds.accepts(bounds.high + step)
    assert not bounds.accepts(float("nan"))
    assert not bounds.accepts(float("inf"))
