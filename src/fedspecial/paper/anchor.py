"""The study of an anchor without tuning (docs/science/anchor.md): development data, confirmation data, an ablation."""

from __future__ import annotations

from fedspecial.paper.claims.base import Claim, ClaimKind
from fedspecial.paper.claims.margins import AtLeast, OnAverage
from fedspecial.paper.claims.methods import Best, NeverMore
from fedspecial.paper.spec import Row, Study

OURS = ClaimKind.OURS
PLUS = "special-plus"
FULL_STEP = (("server_lr", 1),)
ROWS = (
    Row("fedavg"),
    Row("fedavg", FULL_STEP, ", γ_G = 1"),
    Row("special-c"),
    Row("flwf2t"),
    Row("mfcl"),
    Row("srfdil"),
    Row("special"),
    Row("special", (("lam", "auto"),), ", λ measured"),
    Row(PLUS),
)
WITHOUT_SAMPLES = tuple(row.key for row in ROWS if row.method != "srfdil")
DEVELOPMENT = ("digits-shift", "heart", "digit10", "digit10-transposed", "pacs")
WITHOUT_DATA = ("vlcs", "dn4il")
"""Data sets whose images cannot be had everywhere; the averages are over the others where these are missing."""
CONFIRMATION = ("gas-drift", "spoken-digits", "fdu-mtl", "cifar100", *WITHOUT_DATA)
IMAGES = ("digits-shift", "digit10", "digit10-transposed", "pacs", "cifar100", *WITHOUT_DATA)
NAME_BYTES = 64
"""The bank's messages have the statistics apart from the weights: the same numbers, under two names."""

GOALS = (
    *(
        Claim(
            f"SPECIAL+ is at most 0.5 points of ACC below {name} on {{benchmark}}",
            AtLeast("acc", PLUS, row, -0.5),
            kind=OURS,
        )
        for name, row in (
            ("FedAvg", "fedavg"),
            ("FedAvg with γ_G = 1", "fedavg server_lr=1"),
            ("tuned SPECIAL", "special"),
        )
    ),
    Claim(
        "SPECIAL+ has the highest ACC of the methods that store no samples on {benchmark}",
        Best("acc", PLUS, among=WITHOUT_SAMPLES),
        kind=OURS,
    ),
    Claim(
        "With λ measured, SPECIAL is at most 0.5 points of ACC below tuned SPECIAL on {benchmark}",
        AtLeast("acc", "special lam=auto", "special", -0.5),
        kind=OURS,
    ),
    Claim(
        "SPECIAL+ receives no more from clients than FedAvg, but for a second name in each message, on {benchmark}",
        NeverMore("bytes_up", PLUS, "fedavg", extra=NAME_BYTES / 2**20),
        kind=ClaimKind.CONSTRUCTION,
    ),
)


def averages(benchmarks: tuple[str, ...]) -> tuple[Claim, ...]:
    """The goals about averages over benchmarks; each is judged once, with the first benchmark."""
    required = tuple(name for name in benchmarks if name not in WITHOUT_DATA)
    optional = tuple(name for name in benchmarks if name in WITHOUT_DATA)
    images = tuple(name for name in required if name in IMAGES)
    return (
        Claim(
            "On average over the image streams, SPECIAL+ is at least 4 points of ACC above tuned SPECIAL",
            OnAverage("acc", PLUS, "special", 4.0, images, optional),
            benchmarks[:1],
            kind=OURS,
        ),
        Claim(
            "On average, the BWT of SPECIAL+ is no worse than that of tuned SPECIAL",
            OnAverage("bwt", PLUS, "special", 0.0, required, optional),
            benchmarks[:1],
            kind=OURS,
        ),
    )


NOTE = (
    "docs/science/anchor.md has the protocol. SPECIAL+ and the measured λ have no setting tuned to a data set but the "
    "clients' learning rate, which every method gets from the searches."
)
ANCHOR = (
    Study(
        "anchor",
        "An anchor without tuning: development data",
        "not in the paper: whether the strength of the anchor can be measured instead of tuned",
        "methods; λ tuned, measured, and a strength for every weight with a bank of BatchNorm statistics",
        {"cpu": DEVELOPMENT, "tiny": ("digits-shift",)},
        ROWS,
        ("acc", "bwt", "worst_drop", "bytes_up", "bytes_once"),
        figure="dots",
        claims=(
            *GOALS,
            *averages(DEVELOPMENT),
            Claim(
                "SPECIAL+ is at most 3 points of ACC below SR-FDIL, which stores samples, on {benchmark}",
                AtLeast("acc", PLUS, "srfdil", -3.0),
                ("digit10",),
                kind=OURS,
            ),
        ),
        note=f"{NOTE} These data sets were looked at while the method was made, so they confirm nothing.",
        seeds=(25, 225, 2025),
    ),
    Study(
        "anchor-confirmation",
        "An anchor without tuning: confirmation data",
        "not in the paper: whether the result of the study anchor holds on data that was not looked at",
        "the same as in anchor; run once",
        {"cpu": CONFIRMATION},
        ROWS,
        ("acc", "bwt", "worst_drop", "bytes_up", "bytes_once"),
        figure="dots",
        claims=(*GOALS, *averages(CONFIRMATION)),
        note=f"{NOTE} Run it once, when methods and settings are final and `fedspecial study tune-all` has been run.",
        seeds=(26, 226, 2026, 7, 77),
    ),
    Study(
        "anchor-ablation",
        "What SPECIAL+ consists of",
        "not in the paper: which part of SPECIAL+ does what",
        "weights, statistics, how the statistics are chosen, γ_G",
        {"cpu": ("digits-shift", "digit10", "pacs"), "tiny": ("digits-shift",)},
        (
            Row(PLUS, note=": both"),
            Row(PLUS, (("batch_norm", "mean-only"),), ": weights only"),
            Row(PLUS, (("c", 0),), ": statistics only"),
            Row(PLUS, (("c", 0), ("batch_norm", "mean-only")), ": neither"),
            Row(PLUS, (("bank_temperature", 0),), ", the best set for each sample"),
            Row(PLUS, (("bank_temperature", 1e6),), ", the mixture of all sets"),
            Row(PLUS, (("bank_choice", "task"),), ", the set of the true task (no method: it is told the task)"),
            Row(PLUS, (("server_lr", "1/i"),), ", γ_G = 1/i"),
        ),
        ("acc", "bwt"),
        figure="dots",
        claims=(
            Claim(
                "Weights and statistics together have a higher ACC than weights alone on {benchmark}",
                AtLeast("acc", PLUS, f"{PLUS} batch_norm=mean-only", 0.0),
                kind=OURS,
            ),
            Claim(
                "Weights and statistics together have a higher ACC than statistics alone on {benchmark}",
                AtLeast("acc", PLUS, f"{PLUS} c=0", 0.0),
                kind=OURS,
            ),
        ),
        note="Development data.",
        seeds=(25, 225, 2025),
    ),
)
