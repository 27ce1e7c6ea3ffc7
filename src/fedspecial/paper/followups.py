"""Studies that are not in the paper: they examine the claims that did not reproduce."""

from __future__ import annotations

from fedspecial.paper.claims.base import Claim, ClaimKind
from fedspecial.paper.claims.methods import Best, Better
from fedspecial.paper.claims.sweeps import BetterSomewhere, Peaks, Rises
from fedspecial.paper.common import (
    COMPARED,
    FULL,
    NO_SAMPLES,
    SOMEWHERE_ABOVE_FEDAVG,
    SPECIAL_AND_FEDAVG,
    SPECIAL_BOTH_STEPS,
)
from fedspecial.paper.spec import LABELS, Row, Study, Sweep

FOLLOW_UPS = (
    Study(
        "transposed",
        "Digit-10 with the third domain transposed",
        "main and per-task tables, Digit-10",
        "the runs of main on this benchmark: the images of the third domain are transposed",
        {"cpu": ("digit10-transposed",)},
        COMPARED,
        ("acc", "bwt", "task:*"),
        figure="dots",
        claims=(
            Claim("SPECIAL has the highest ACC on {benchmark}", Best("acc"), kind=ClaimKind.OURS),
            Claim(
                "Among the paper's methods that store no samples, SPECIAL has the highest ACC on {benchmark}",
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
        "Our reading of SR-FDIL: the size of its cache",
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
                "The ACC of SR-FDIL (our reading) rises with the size of its cache on {benchmark}",
                Rises("acc", "srfdil"),
                kind=ClaimKind.OURS,
            ),
        ),
        note="With an empty cache, our reading of SR-FDIL is FedAvg. SPECIAL stores no samples.",
    ),
    Study(
        "full-rivals",
        "Rivals that are not cut down",
        "not in the paper: whether the rivals that run cut down on a CPU would do better in full",
        "pFedDIL with its auxiliary head, FedCIL and MFCL with the authors' networks and all iterations and images",
        {"cpu": ("digit10",)},
        (
            Row("fedavg"),
            *(row for name, full in FULL.items() for row in (Row(name), full)),
            Row("special"),
        ),
        ("acc", "bwt", "seconds_per_round"),
        figure="dots",
        claims=tuple(
            claim
            for name, full in FULL.items()
            for claim in (
                Claim(
                    f"{LABELS[name]} in full has a higher ACC than cut down on {{benchmark}}",
                    Better("acc", full.key, name),
                    kind=ClaimKind.OURS,
                ),
                Claim(
                    f"SPECIAL's ACC is above that of {LABELS[name]} in full on {{benchmark}}",
                    Better("acc", "special", full.key),
                    kind=ClaimKind.OURS,
                ),
            )
        ),
        note="In full: every setting that the preset for a CPU reduces has the default of the method. What the "
        "searches chose (learning rate, weights of the losses) is the same in both rows.",
        seeds=(25, 225, 2025),
    ),
)
