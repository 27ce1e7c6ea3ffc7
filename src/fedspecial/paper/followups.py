"""Studies that are not in the paper: they look into what does not hold in the others."""

from __future__ import annotations

from fedspecial.paper.claims import Best, Better, Claim
from fedspecial.paper.common import AHEAD, BESIDE_FEDAVG, BOTH_STEPS, ELEVEN, NO_SAMPLES
from fedspecial.paper.spec import Row, Study, Sweep
from fedspecial.paper.trends import Ahead, Peaks, Rises

INQUIRIES = (
    Study(
        "lying",
        "Digit-10 with its third domain lying on its side",
        "main and per-task table, Digit-10",
        "nine methods, the third domain mirrored at the diagonal",
        {"cpu": ("digit10-lying",)},
        ELEVEN,
        ("acc", "bwt", "task:*"),
        figure="dots",
        claims=(
            Claim("SPECIAL has the highest ACC on {benchmark}", Best("acc"), ours=True),
            Claim("Of those that keep no samples, SPECIAL has the highest ACC on {benchmark}", NO_SAMPLES, ours=True),
            Claim("SPECIAL's ACC is above FedAvg's on {benchmark}", Better("acc", "special", "fedavg"), ours=True),
            Claim(
                "SPECIAL's ACC is also above that of FedAvg with γ_G = 1 on {benchmark}",
                Better("acc", "special", "fedavg server_lr=1"),
                ours=True,
            ),
            Claim(
                "SPECIAL forgets less than FedAvg (BWT) on {benchmark}", Better("bwt", "special", "fedavg"), ours=True
            ),
        ),
        note="EMNIST's files hold the digits mirrored, and common readers hand them out so. In print EMNIST ends far "
        "below MNIST for every method, as it does if it lies on its side and not if it stands upright (`per-task`).",
        printed_in=("main", "per-task"),
    ),
    Study(
        "lying-lambda",
        "λ where the third domain lies on its side",
        "not in the paper: whether λ pays where there is more to forget",
        "λ, with γ_G = 1/i and with γ_G = 1",
        {"cpu": ("digit10-lying",)},
        BOTH_STEPS,
        ("acc", "bwt"),
        Sweep("lam", "λ", {"cpu": (0.0, 0.05, 0.1, 0.2, 0.4)}),
        layout="sweep",
        figure="scatter",
        claims=(
            Claim("ACC is best at a λ in the middle on {benchmark}", Peaks("acc"), ours=True),
            Claim(
                "With γ_G = 1, ACC is best at a λ in the middle on {benchmark}",
                Peaks("acc", "special server_lr=1"),
                ours=True,
            ),
        ),
        note="λ = 0 is FedAvg.",
    ),
    Study(
        "size",
        "Images a domain",
        "not in the paper: whether the verdicts of main hang on its size",
        "how many images a domain has at most",
        {"cpu": ("digit10", "digit10-lying"), "tiny": ("digits-shift",)},
        (*BESIDE_FEDAVG, Row("special", (("lam", 0.2),), ", λ = 0.2")),
        ("acc", "bwt"),
        Sweep("cap", "images", {"cpu": (500, 1500, 6000), "tiny": (300, 600)}),
        layout="sweep",
        figure="lines",
        claims=(
            Claim("SPECIAL's ACC is above FedAvg's at some size of {benchmark}", AHEAD, ours=True),
            Claim(
                "With λ = 0.2, SPECIAL's ACC is above FedAvg's at some size of {benchmark}",
                Ahead("acc", "special lam=0.2", "fedavg"),
                ours=True,
            ),
            Claim("FedAvg forgets more with more images on {benchmark}", Rises("bwt", "fedavg", sign=-1), ours=True),
        ),
        note="SPECIAL's λ is that of main, or 0.2, near the paper's 0.25.",
    ),
    Study(
        "cache",
        "SR-FDIL's cache",
        "not in the paper, which does not say how many samples SR-FDIL keeps",
        "samples that a client keeps",
        {"cpu": ("digit10", "pacs")},
        (Row("srfdil"),),
        ("acc", "bwt", "memory"),
        Sweep("cache", "samples", {"cpu": (0, 10, 20, 50, 100)}),
        layout="sweep",
        figure="lines",
        claims=(Claim("SR-FDIL's ACC rises with its cache on {benchmark}", Rises("acc", "srfdil"), ours=True),),
        note="None kept is FedAvg. SPECIAL keeps none.",
    ),
)
