"""The studies that compare methods, and those that read the same runs in another way."""

from __future__ import annotations

from fedspecial.paper.claims import Best, Better, Claim, NoMore
from fedspecial.paper.common import ELEVEN, NINE, NO_SAMPLES, VISION
from fedspecial.paper.spec import Study, Sweep

ELSEWHERE = (
    "how EMNIST's digits lie (`lying`, `lying-lambda`), how many samples SR-FDIL keeps (`cache`), more images a domain "
    "(`size`), more rounds and epochs (`rounds`, `epochs`), clients more and less alike (`alpha`), other λ and γ_G = 1 "
    "(`lambda`), the paper's network (`full-model`)"
)
STRONGER = "a stronger anchor on the clients (the third row of `location`)"

COMPARISONS = (
    Study(
        "main",
        "Main results",
        "main table, N = 4",
        "nine methods on each benchmark; FedAvg and FedProx also with γ_G = 1",
        VISION,
        ELEVEN,
        ("acc", "bwt"),
        figure="dots",
        claims=(
            Claim("SPECIAL has the highest ACC on {benchmark}", Best("acc"), tried=ELSEWHERE),
            Claim("Of those that keep no samples, SPECIAL has the highest ACC on {benchmark}", NO_SAMPLES, ours=True),
            Claim("SPECIAL forgets less than FedAvg (BWT) on {benchmark}", Better("bwt", "special", "fedavg")),
            Claim(
                "SPECIAL-C forgets less than SPECIAL (BWT) on {benchmark}",
                Better("bwt", "special-c", "special"),
                ("digit10",),
                tried=STRONGER,
            ),
            Claim("SPECIAL-C trails SPECIAL on ACC on {benchmark}", Better("acc", "special", "special-c")),
            Claim(
                "SPECIAL-C trails SPECIAL on BWT on {benchmark}",
                Better("bwt", "special", "special-c"),
                ("vlcs", "pacs", "dn4il"),
            ),
            Claim(
                "SPECIAL's ACC is also above that of FedAvg with γ_G = 1 on {benchmark}",
                Better("acc", "special", "fedavg server_lr=1"),
                ours=True,
                tried=ELSEWHERE,
            ),
            Claim(
                "FedAvg forgets more with γ_G = 1 than with γ_G = 1/i on {benchmark}",
                Better("bwt", "fedavg", "fedavg server_lr=1"),
                ours=True,
            ),
        ),
        note="The paper states γ_G = 1/i for all runs; whether its FedAvg and FedProx used it is not said.",
    ),
    Study(
        "participation",
        "Participation",
        "appendix tables, N = 2, 6, 8",
        "clients per round N",
        VISION,
        NINE,
        ("acc", "bwt"),
        Sweep("clients_per_round", "N", {"paper": (2, 6, 8), "cpu": (2, 6, 8), "tiny": (2, 8)}),
        claims=tuple(
            Claim(f"SPECIAL has the highest ACC on {{benchmark}} with N = {n}", Best("acc", x=n)) for n in (2, 6, 8)
        ),
        note="The printed numbers for N = 4 lie outside the range of those for N = 2, 6, 8 in many places (another "
        "protocol?), so no trend from N = 2 through 4 to 8 is claimed here.",
    ),
    Study(
        "per-task",
        "Accuracy on each domain at the end",
        "per-task tables, N = 4",
        "nothing: reads the runs of main",
        VISION,
        ELEVEN,
        ("task:*", "acc"),
        figure="matrices",
        note="In print, six ACC cells differ from the mean of their row by up to two points.",
    ),
    Study(
        "worst-drop",
        "Worst earlier-task drop",
        "table of worst earlier-task drops",
        "nothing: reads the runs of main",
        VISION,
        ELEVEN,
        ("worst_drop",),
        claims=(
            Claim(
                "SPECIAL's worst drop is smaller than FedAvg's on {benchmark}",
                Better("worst_drop", "special", "fedavg"),
            ),
        ),
    ),
    Study(
        "costs",
        "Rounds, time and memory",
        "communication and runtime table; memory table",
        "nothing: reads the runs of main",
        VISION,
        ELEVEN,
        (
            *("rounds_to_best", "seconds_per_round", "seconds_between_tasks", "memory", "memory_all"),
            *("bytes_up", "bytes_down", "bytes_once"),
        ),
        claims=(
            Claim("SPECIAL needs the fewest rounds to its best on {benchmark}", Best("rounds_to_best")),
            Claim(
                "SPECIAL's round takes no more than 1.1 times FedAvg's on {benchmark}",
                NoMore("seconds_per_round", "special", "fedavg", 1.1),
            ),
            Claim("SPECIAL's clients hold no more than FedAvg's on {benchmark}", NoMore("memory", "special", "fedavg")),
            Claim(
                "SPECIAL sends no more to clients than FedAvg on {benchmark}", NoMore("bytes_down", "special", "fedavg")
            ),
            Claim(
                "SPECIAL gets no more from clients than FedAvg on {benchmark}", NoMore("bytes_up", "special", "fedavg")
            ),
        ),
        note="Seconds are of this machine with other runs beside it, without evaluation; the printed ones are of two "
        "GPUs. Memory by the paper's rule: the working model and what is stored beside it. The printed peak memory is "
        "a GPU's and has no counterpart here; what a client holds in all is shown instead.",
    ),
)
