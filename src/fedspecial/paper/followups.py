"""Studies that are not in the paper: they examine the claims that did not reproduce."""

from __future__ import annotations

from fedspecial.paper.claims.base import Claim, ClaimKind
from fedspecial.paper.claims.methods import Best, Better
from fedspecial.paper.claims.sweeps import BetterSomewhere, Peaks, Rises
from fedspecial.paper.common import (
    METHODS_BOTH_STEPS,
    NO_SAMPLES,
    SOMEWHERE_ABOVE_FEDAVG,
    SPECIAL_AND_FEDAVG,
    SPECIAL_BOTH_STEPS,
)
from fedspecial.paper.spec import Row, Study, Sweep

FOLLOW_UPS = (
    Study(
        "transposed",
        "Digit-10 with the third domain transposed",
        "main and per-task tables, Digit-10",
        "nine methods; the images of the third domain are transposed",
        {"cpu": ("digit10-transposed",)},
        METHODS_BOTH_STEPS,
        ("acc", "bwt", "task:*"),
        figure="dots",
        claims=(
            Claim("SPECIAL has the highest ACC on {benchmark}", Best("acc"), kind=ClaimKind.OURS),
            Claim(
                "Among methods that store no samples, SPECIAL has the highest ACC on {benchmark}",
                NO_SAMPLES,
                kind=ClaimKind.OURS,
            ),
            Claim(
                "SPECIAL's ACC is above FedAvg's on {benchmark}",
                Better("acc", "special", "fedavg"),
                kind=ClaimKind.OURS,
            ),
            Claim(
                "SPECIAL's ACC is also above that of FedAvg with γ_G = 1 on {benchmark}",
                Better("acc", "special", "fedavg server_lr=1"),
                kind=ClaimKind.OURS,
            ),
            Claim(
                "SPECIAL forgets less than FedAvg (BWT) on {benchmark}",
                Better("bwt", "special", "fedavg"),
                kind=ClaimKind.OURS,
            ),
        ),
        note="EMNIST's files store the digits transposed, and common readers do not correct this. In the paper, the "
        "final accuracy on EMNIST is far below that on MNIST for every method. We see the same with transposed digits, "
        "but not with upright ones (`per-task`).",
        published_in=("main", "per-task"),
    ),
    Study(
        "transposed-lambda",
        "λ with the third domain transposed",
        "not in the paper: whether λ improves ACC when there is more forgetting",
        "λ, with γ_G = 1/i and with γ_G = 1",
        {"cpu": ("digit10-transposed",)},
        SPECIAL_BOTH_STEPS,
        ("acc", "bwt"),
        Sweep("lam", "λ", {"cpu": (0.0, 0.05, 0.1, 0.2, 0.4)}),
        layout="sweep",
        figure="scatter",
        claims=(
            Claim("ACC is highest at an intermediate λ on {benchmark}", Peaks("acc"), kind=ClaimKind.OURS),
            Claim(
                "With γ_G = 1, ACC is highest at an intermediate λ on {benchmark}",
                Peaks("acc", "special server_lr=1"),
                kind=ClaimKind.OURS,
            ),
        ),
        note="λ = 0 is FedAvg.",
    ),
    Study(
        "size",
        "Images per domain",
        "not in the paper: whether the verdicts of main depend on the amount of data",
        "the maximum number of images per domain",
        {"cpu": ("digit10", "digit10-transposed"), "tiny": ("digits-shift",)},
        (*SPECIAL_AND_FEDAVG, Row("special", (("lam", 0.2),), ", λ = 0.2")),
        ("acc", "bwt"),
        Sweep("cap", "images", {"cpu": (500, 1500, 6000), "tiny": (300, 600)}),
        layout="sweep",
        figure="lines",
        claims=(
            Claim(
                "SPECIAL's ACC is above FedAvg's for at least one size of {benchmark}",
                SOMEWHERE_ABOVE_FEDAVG,
                kind=ClaimKind.OURS,
            ),
            Claim(
                "With λ = 0.2, SPECIAL's ACC is above FedAvg's for at least one size of {benchmark}",
                BetterSomewhere("acc", "special lam=0.2", "fedavg"),
                kind=ClaimKind.OURS,
            ),
            Claim(
                "FedAvg forgets more with more images on {benchmark}",
                Rises("bwt", "fedavg", sign=-1),
                kind=ClaimKind.OURS,
            ),
        ),
        note="SPECIAL uses the λ of main, or 0.2, which is close to the paper's 0.25.",
    ),
    Study(
        "cache",
        "SR-FDIL's cache",
        "not in the paper, which does not give the number of samples that SR-FDIL stores",
        "the number of samples that a client stores",
        {"cpu": ("digit10", "pacs")},
        (Row("srfdil"),),
        ("acc", "bwt", "memory"),
        Sweep("cache", "samples", {"cpu": (0, 10, 20, 50, 100)}),
        layout="sweep",
        figure="lines",
        claims=(
            Claim(
                "SR-FDIL's ACC rises with the size of its cache on {benchmark}",
                Rises("acc", "srfdil"),
                kind=ClaimKind.OURS,
            ),
        ),
        note="With an empty cache, SR-FDIL is FedAvg. SPECIAL stores no samples.",
    ),
)
