"""Theory of SPECIAL: bounds, their conditions, certificates of runs, and rules for choosing lam.

This package needs NumPy only. Every bound is a plain function: it takes a `RoundConfig` (the settings of a
round) and `Constants` (the constants of the problem) and returns a float.

- `drift_radius`, `forgetting_cap`, `bkt_slack`, `surrogate_bound`, ...: the bounds (``bounds/``)
- `check_conditions`: whether the conditions of a statement are met (``conditions``)
- `DriftMonitor`, `certify`, `certify_run`: compare a run with its bounds (``certificates/``)
- `lam_for_radius`, `trust_region_lam`, `budget_lam`, ...: rules for choosing lam (``lambda_rules``)

Functions whose name starts with ``paper_`` are the statements exactly as the paper prints them.
"""

from fedspecial.core.events import Estimate
from fedspecial.theory.arrays import flat_norm
from fedspecial.theory.async_aggregation import aggregate_async, staleness_weight
from fedspecial.theory.bounds import *  # noqa: F403
from fedspecial.theory.bounds import __all__ as _bounds
from fedspecial.theory.certificates.round import RoundCertificate, Violation
from fedspecial.theory.certificates.run import certify_run
from fedspecial.theory.certificates.task import DriftMonitor, TaskCertificate, certify
from fedspecial.theory.conditions import STATEMENTS, Condition, ConditionReport, check_conditions
from fedspecial.theory.constants import Constants, RoundConfig, local_steps
from fedspecial.theory.lambda_rules import (
    CurvatureSum,
    budget_lam,
    lam_for_bkt,
    lam_for_radius,
    laplace_lam,
    trust_region_lam,
)

__all__ = [
    *_bounds,
    "STATEMENTS",
    "Condition",
    "ConditionReport",
    "Constants",
    "CurvatureSum",
    "DriftMonitor",
    "Estimate",
    "RoundCertificate",
    "RoundConfig",
    "TaskCertificate",
    "Violation",
    "aggregate_async",
    "budget_lam",
    "certify",
    "certify_run",
    "check_conditions",
    "flat_norm",
    "lam_for_bkt",
    "lam_for_radius",
    "laplace_lam",
    "local_steps",
    "staleness_weight",
    "trust_region_lam",
]
