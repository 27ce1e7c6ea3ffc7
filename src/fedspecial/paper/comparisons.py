"""Studies that compare methods, and studies that read other metrics from the same runs."""

from __future__ import annotations

from fedspecial.paper.claims.base import Claim, ClaimKind
from fedspecial.paper.claims.methods import AtMost, Best, Better, NeverMore
from fedspecial.paper.common import (
    COMPARED,
    COMPARISON,
    METHODS,
    NO_SAMPLES,
    SMALL_CACHE,
    STORE_NO_SAMPLES,
    VISION,
    everywhere,
)
from fedspecial.paper.spec import Study, Sweep

ELSEWHERE = (
    "the orientation of EMNIST's digits (`transposed`, `transposed-lambda`), the number of samples that our reading of "
    "SR-FDIL stores (`cache`), rivals that are not cut down (`full-rivals`), more images per domain (`size`), more "
    "rounds and epochs (`rounds`, `epochs`), more and less heterogeneous clients (`alpha`), other values of λ and "
    "γ_G = 1 (`lambda`), the paper's network (`full-model`)"
)
STRONGER = "a stronger anchor on the clients (the third row of `location`)"

COMPARISONS = (
    Study(
        "main",
        "Main results",
        "main table, N = 4",
        "all methods on each benchmark; FedAvg and FedProx also with γ_G = 1, SR-FDIL also with a small cache",
        COMPARISON,
        COMPARED,
        ("acc", "bwt"),
        figure="dots",
        claims=(
            *everywhere("SPECIAL has the highest ACC on {benchmark}", Best("acc"), examined=ELSEWHERE),
            Claim(
                "Among the paper's methods that store no samples, SPECIAL has the highest ACC on {benchmark}",
                NO_SAMPLES,
                kind=ClaimKind.OURS,
            ),
            Claim(
                "SPECIAL+ has a higher ACC than each of the paper's methods that store no samples on {benchmark}",
                Best("acc", "special-plus", among=STORE_NO_SAMPLES),
                kind=ClaimKind.OURS,
            ),
            Claim(
                "SPECIAL's ACC is above that of SR-FDIL (our reading) with a cache of 2.4 % on {benchmark}",
                Better("acc", "special", SMALL_CACHE.key),
                kind=ClaimKind.OURS,
            ),
            *everywhere("SPECIAL forgets less than FedAvg (BWT) on {benchmark}", Better("bwt", "special", "fedavg")),
            Claim(
                "SPECIAL-C forgets less than SPECIAL (BWT) on {benchmark}",
                Better("bwt", "special-c", "special"),
                ("digit10",),
                examined=STRONGER,
            ),
            *everywhere("SPECIAL-C has a lower ACC than SPECIAL on {benchmark}", Better("acc", "special", "special-c")),
            Claim(
                "SPECIAL-C has a lower BWT than SPECIAL on {benchmark}",
                Better("bwt", "special", "special-c"),
                ("vlcs", "pacs", "dn4il"),
            ),
            Claim(
                "SPECIAL's ACC is also above that of FedAvg with γ_G = 1 on {benchmark}",
                Better("acc", "special", "fedavg server_lr=1"),
                kind=ClaimKind.OURS,
                examined=ELSEWHERE,
            ),
            Claim(
                "FedAvg forgets more with γ_G = 1 than with γ_G = 1/i on {benchmark}",
                Better("bwt", "fedavg", "fedavg server_lr=1"),
                kind=ClaimKind.OURS,
            ),
        ),
        note="The paper gives γ_G = 1/i for all runs. It does not say whether this includes FedAvg and FedProx. Joint "
        "training has the data of all domains in every task. It is an upper bound and no rival, and it cannot forget, "
        "so it has no BWT. SPECIAL+ is not in the paper; its γ_G is 1.",
    ),
    Study(
        "participation",
        "Participation",
        "appendix tables, N = 2, 6, 8",
        "clients per round N",
        VISION,
        METHODS,
        ("acc", "bwt"),
        Sweep("clients_per_round", "N", {"paper": (2, 6, 8), "cpu": (2, 6, 8), "tiny": (2, 8)}),
        claims=tuple(
            Claim(f"SPECIAL has the highest ACC on {{benchmark}} with N = {n}", Best("acc", x=n)) for n in (2, 6, 8)
        ),
        note="Many of the published numbers for N = 4 are outside the range of those for N = 2, 6 and 8, possibly "
        "because of a different protocol. We therefore test no trend over N = 2, 4, 6, 8.",
    ),
    Study(
        "per-task",
        "Final accuracy on each domain",
        "per-task tables, N = 4",
        "nothing; it uses the runs of main",
        COMPARISON,
        COMPARED,
        ("task:*", "acc"),
        figure="matrices",
        note="In the paper, six ACC values differ from the mean of their row by up to two points.",
    ),
    Study(
        "worst-drop",
        "Largest drop on an earlier task",
        "table of worst earlier-task drops",
        "nothing; it uses the runs of main",
        COMPARISON,
        COMPARED,
        ("worst_drop",),
        claims=(
            *everywhere(
                "SPECIAL's worst drop is smaller than FedAvg's on {benchmark}",
                Better("worst_drop", "special", "fedavg"),
            ),
        ),
    ),
    Study(
        "costs",
        "Rounds, time and memory",
        "communication and runtime table; memory table",
        "nothing; it uses the runs of main",
        COMPARISON,
        COMPARED,
        (
            *("rounds_to_best", "seconds_per_round", "seconds_between_tasks", "memory", "memory_all"),
            *("bytes_up", "bytes_down", "bytes_once"),
        ),
        claims=(
            *everywhere(
                "SPECIAL needs the fewest rounds to reach its best accuracy on {benchmark}", Best("rounds_to_best")
            ),
            *everywhere(
                "A round of SPECIAL takes at most 1.1 times as long as one of FedAvg on {benchmark}",
                AtMost("seconds_per_round", "special", "fedavg", 1.1),
            ),
            Claim(
                "SPECIAL's clients need no more memory than FedAvg's on {benchmark}",
                NeverMore("memory", "special", "fedavg"),
                kind=ClaimKind.CONSTRUCTION,
            ),
            Claim(
                "SPECIAL sends no more to clients than FedAvg on {benchmark}",
                NeverMore("bytes_down", "special", "fedavg"),
                kind=ClaimKind.CONSTRUCTION,
            ),
            Claim(
                "SPECIAL receives no more from clients than FedAvg on {benchmark}",
                NeverMore("bytes_up", "special", "fedavg"),
                kind=ClaimKind.CONSTRUCTION,
            ),
        ),
        note="Our seconds were measured on this machine while other runs were in progress, without evaluation; the "
        "published ones were measured on two GPUs. Memory follows the paper's definition: the model in training plus "
        "what a client stores in addition. The published peak memory is that of a GPU and has no counterpart here; we "
        "show the total memory of a client instead.",
    ),
)
