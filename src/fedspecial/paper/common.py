"""Rows, benchmarks, sweep values and rules that several studies share."""

from __future__ import annotations

from fedspecial.paper.claims.base import Claim, ClaimKind, Rule
from fedspecial.paper.claims.methods import Best
from fedspecial.paper.claims.sweeps import BetterSomewhere
from fedspecial.paper.spec import LABELS, ByBenchmark, Row, Sweep

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
# With 1,120 samples, which fit the paper's memory table, a client stores 2.4 % of what it sees on Digit-10. The values
# are this share of the training samples per client at each scale; the reports compute the share from the runs.
SMALL_CACHE = Row(
    "srfdil",
    (
        (
            "cache",
            ByBenchmark(
                "2.4%",
                (
                    ("cpu", "digit10", 18),
                    ("cpu", "digit10-transposed", 18),
                    ("cpu", "pacs", 21),
                    ("cpu", "gas-drift", 28),
                    ("cpu", "spoken-digits", 8),
                    ("tiny", "digits-shift", 7),
                ),
            ),
        ),
    ),
    ", cache of 2.4 %",
)
# The rows of the main comparison: besides the paper's methods our own one, and joint training, which is no rival.
COMPARED = (
    *(row for row in METHODS_BOTH_STEPS if row.method not in ("pfeddil", "flwf2t", "special-c", "special")),
    SMALL_CACHE,
    *(row for row in METHODS_BOTH_STEPS if row.method in ("pfeddil", "flwf2t", "special-c", "special")),
    Row("special-plus"),
    Row("joint"),
)
# What the presets for a CPU cut down, with the defaults of the methods (a test compares them).
FULL = {
    "pfeddil": Row("pfeddil", (("signal", "correctness"),), ", with auxiliary head", times=1.1),
    "fedcil": Row(
        "fedcil",
        (("server_iterations", 50), ("gan_every", 1), ("gan_lr", 1e-4), ("generator_width", 64), ("gan_size", 64)),
        ", in full",
        times=20.0,
    ),
    "mfcl": Row("mfcl", (("synthetic", 128), ("generator_width", 128), ("latent", 1000)), ", in full", times=4.0),
}

TEXT_METHODS = tuple(row for row in METHODS if row.method not in ("fedcil", "mfcl", "srfdil"))
SPECIAL = (Row("special"),)
SPECIAL_AND_FEDAVG = (Row("special"), Row("fedavg"))
SPECIAL_BOTH_STEPS = (Row("special"), Row("special", FULL_STEP, ", γ_G = 1"))
SOMEWHERE_ABOVE_FEDAVG = BetterSomewhere("acc", "special", "fedavg")
STORE_NO_SAMPLES = tuple(row.key for row in METHODS if row.method != "srfdil")
NO_SAMPLES = Best("acc", among=STORE_NO_SAMPLES)

PAPER_VISION = ("digit10", "vlcs", "pacs", "dn4il")
FURTHER = ("digit10-transposed", "gas-drift", "spoken-digits")
VISION = {"paper": PAPER_VISION, "cpu": ("digit10", "pacs", "vlcs", "dn4il"), "tiny": ("digits-shift",)}
COMPARISON = {**VISION, "cpu": ("digit10", "digit10-transposed", "pacs", "gas-drift", "spoken-digits", "vlcs", "dn4il")}


def everywhere(text: str, rule: Rule, examined: str = "") -> tuple[Claim, Claim]:
    """A claim of the paper on its benchmarks, and the same as a question of ours on the others."""
    return (
        Claim(text, rule, PAPER_VISION, examined=examined),
        Claim(text, rule, FURTHER, kind=ClaimKind.OURS),
    )


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
