"""Rows, benchmarks, sweep values and rules that several studies share."""

from __future__ import annotations

from fedspecial.paper.claims.methods import Best
from fedspecial.paper.claims.sweeps import BetterSomewhere
from fedspecial.paper.spec import LABELS, Row, Sweep

FULL_STEP = (("server_lr", 1),)
METHODS = tuple(Row(name) for name in LABELS)
# γ_G = 1/i shortens the server steps of later tasks, which by itself reduces forgetting. FedAvg and FedProx are
# therefore also run with γ_G = 1.
METHODS_BOTH_STEPS = (
    Row("fedavg"),
    Row("fedavg", FULL_STEP, ", γ_G = 1"),
    Row("fedprox"),
    Row("fedprox", FULL_STEP, ", γ_G = 1"),
    *METHODS[2:],
)
TEXT_METHODS = tuple(row for row in METHODS if row.method not in ("fedcil", "mfcl", "srfdil"))
SPECIAL = (Row("special"),)
SPECIAL_AND_FEDAVG = (Row("special"), Row("fedavg"))
SPECIAL_BOTH_STEPS = (Row("special"), Row("special", FULL_STEP, ", γ_G = 1"))
SOMEWHERE_ABOVE_FEDAVG = BetterSomewhere("acc", "special", "fedavg")
NO_SAMPLES = Best("acc", among=tuple(row.key for row in METHODS if row.method != "srfdil"))

VISION = {
    "paper": ("digit10", "vlcs", "pacs", "dn4il"),
    "cpu": ("digit10", "pacs", "vlcs", "dn4il"),
    "tiny": ("digits-shift",),
}
DIGITS = {"paper": ("digit10",), "cpu": ("digit10",), "tiny": ("digits-shift",)}
COARSE = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
TINY_LAM = (0.0, 0.25, 1.0)
LAM = Sweep(
    "lam",
    "λ",
    {
        "paper": (0.0, 0.2, 0.25, 0.3, 0.35, 0.4, 0.6, 0.8, 1.0),
        "cpu": (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.6, 0.8, 1.0),
        "tiny": TINY_LAM,
    },
)
