"""Federated domain-incremental learning: SPECIAL and its rivals, on one machine or in a real federation.

    import fedspecial
    result = fedspecial.run("digits-shift", method="special", lam=0.25)

Names are imported when they are first used, so ``fedspecial.theory`` needs no torch and ``--help`` is instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark, Domain, Samples
    from fedspecial.errors import InputError
    from fedspecial.methods.base import Method
    from fedspecial.report.result import Result
    from fedspecial.runs.api import resume, run

__all__ = ["Benchmark", "Domain", "InputError", "Method", "Result", "Samples", "__version__", "resume", "run"]

_HOMES = {
    "Benchmark": "fedspecial.data.benchmark",
    "Domain": "fedspecial.data.benchmark",
    "InputError": "fedspecial.errors",
    "Method": "fedspecial.methods.base",
    "Result": "fedspecial.report.result",
    "Samples": "fedspecial.data.benchmark",
    "resume": "fedspecial.runs.api",
    "run": "fedspecial.runs.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedspecial' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
