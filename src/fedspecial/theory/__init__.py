"""Bounds for SPECIAL, their conditions, certificates of runs, and rules for lam. NumPy only, no torch.

`RoundConfig` and `Constants` go in; `drift_radius`, `forgetting_cap`, `bkt_slack`, `surrogate_bound` and
the others come out as floats; `check` says whether a statement's conditions are met; `DriftMonitor` and
`certify` compare a run with what it could not have exceeded. Names beginning with ``paper_`` are the
printed statements.
"""

from fedspecial.core.events import Estimate
from fedspecial.theory.arrays import flat_norm
from fedspecial.theory.bounds import *  # noqa: F403
from fedspecial.theory.bounds import __all__ as _bounds
from fedspecial.theory.certificate import DriftMonitor, TaskCertificate, certify
from fedspecial.theory.chain import RoundCertificate, Violation
from fedspecial.theory.conditions import STATEMENTS, Condition, ConditionReport, check
from fedspecial.theory.constants import Constants, RoundConfig, local_steps
from fedspecial.theory.estimated import certify_run
from fedspecial.theory.rules import (
    CurvatureLedger,
    aggregate_async,
    budget_lam,
    lam_for_bkt,
    lam_for_radius,
    laplace_lam,
    staleness_weight,
    trust_region_lam,
)

__all__ = [
    *_bounds,
    "STATEMENTS",
    "Condition",
    "ConditionReport",
    "Constants",
    "CurvatureLedger",
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
    "check",
    "flat_norm",
    "lam_for_bkt",
    "lam_for_radius",
    "laplace_lam",
    "local_steps",
    "staleness_weight",
    "trust_region_lam",
]
