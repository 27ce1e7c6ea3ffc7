"""Federated domain-incremental learning with SPECIAL and other methods, on one machine or in a real federation.

    import fedspecial
    result = fedspecial.run("digits-shift", method="special", lam=0.25)

Names are imported when they are first used, so that ``fedspecial.theory`` needs no torch and ``--help`` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedspecial.core.messages import Broadcast, ClientState, ServerState, Update
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.samples import Domain, Samples
    from fedspecial.errors import InputError
    from fedspecial.methods.base import Method, ProximalTerm, RoundInfo, StepReport
    from fedspecial.methods.context import (
        ClientContext,
        Exchange,
        ProblemSpec,
        Query,
        QueryResult,
        ServerContext,
    )
    from fedspecial.methods.fedavg import FedAvg
    from fedspecial.methods.fedcil import FedCil
    from fedspecial.methods.fedprox import FedProx
    from fedspecial.methods.flwf2t import FLwF2T
    from fedspecial.methods.joint import Joint
    from fedspecial.methods.local import Local
    from fedspecial.methods.mfcl import Mfcl
    from fedspecial.methods.pfeddil import PFedDil
    from fedspecial.methods.special import Special
    from fedspecial.methods.special_c import SpecialC
    from fedspecial.methods.special_plus import SpecialPlus
    from fedspecial.methods.srfdil import SrFdil
    from fedspecial.objectives.base import Metric, Objective
    from fedspecial.report.result import Result
    from fedspecial.runs.api import resume, run
    from fedspecial.runs.compare import Comparison, compare
    from fedspecial.runs.evaluate import evaluate
    from fedspecial.runs.extend import extend
    from fedspecial.runs.load import TrainedModel, load
    from fedspecial.runs.tune import Tuned, tune

__all__ = [
    "Benchmark",
    "Broadcast",
    "ClientContext",
    "ClientState",
    "Comparison",
    "Domain",
    "Exchange",
    "FLwF2T",
    "FedAvg",
    "FedCil",
    "FedProx",
    "InputError",
    "Joint",
    "Local",
    "Method",
    "Metric",
    "Mfcl",
    "Objective",
    "PFedDil",
    "ProblemSpec",
    "ProximalTerm",
    "Query",
    "QueryResult",
    "Result",
    "RoundInfo",
    "Samples",
    "ServerContext",
    "ServerState",
    "Special",
    "SpecialC",
    "SpecialPlus",
    "SrFdil",
    "StepReport",
    "TrainedModel",
    "Tuned",
    "Update",
    "__version__",
    "compare",
    "evaluate",
    "extend",
    "load",
    "resume",
    "run",
    "tune",
]

_MODULES = {
    "core.messages": ("Broadcast", "ClientState", "ServerState", "Update"),
    "data.benchmark": ("Benchmark",),
    "data.samples": ("Domain", "Samples"),
    "errors": ("InputError",),
    "methods.base": ("Method", "ProximalTerm", "RoundInfo", "StepReport"),
    "methods.context": ("ClientContext", "Exchange", "ProblemSpec", "Query", "QueryResult", "ServerContext"),
    "methods.fedavg": ("FedAvg",),
    "methods.fedcil": ("FedCil",),
    "methods.fedprox": ("FedProx",),
    "methods.flwf2t": ("FLwF2T",),
    "methods.joint": ("Joint",),
    "methods.local": ("Local",),
    "methods.mfcl": ("Mfcl",),
    "methods.pfeddil": ("PFedDil",),
    "methods.special": ("Special",),
    "methods.special_c": ("SpecialC",),
    "methods.special_plus": ("SpecialPlus",),
    "methods.srfdil": ("SrFdil",),
    "objectives.base": ("Metric", "Objective"),
    "report.result": ("Result",),
    "runs.api": ("resume", "run"),
    "runs.compare": ("Comparison", "compare"),
    "runs.evaluate": ("evaluate",),
    "runs.extend": ("extend",),
    "runs.load": ("TrainedModel", "load"),
    "runs.tune": ("Tuned", "tune"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'fedspecial' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"fedspecial.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
