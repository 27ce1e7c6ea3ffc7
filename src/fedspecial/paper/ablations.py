"""The studies that vary one thing, other kinds of tasks, the full model, and the theory."""

from __future__ import annotations

from fedspecial.paper.claims import Best, Better, Claim, Positive
from fedspecial.paper.common import AHEAD, BESIDE_FEDAVG, BOTH_STEPS, COARSE, DIGITS, LAM, NINE, SPECIAL, TEXT, TINY_LAM
from fedspecial.paper.spec import Row, Study, Sweep
from fedspecial.paper.theorems import Certified, Slope
from fedspecial.paper.trends import Band, Peaks, Rises

STRONG_ROW = Row("special-c", (("lam", 1.0),), ", λ = 1")
STRONG = STRONG_ROW.key
FEDAVG_TOO = "FedAvg stands beside SPECIAL to see where the anchor pays; the paper varies this for SPECIAL alone."

ABLATIONS = (
    Study(
        "lambda",
        "λ: stability against plasticity",
        "ACC–BWT scatter over λ",
        "λ from 0 to 1 by 0.2, then finer; also with γ_G = 1",
        {"paper": ("digit10", "vlcs", "pacs", "dn4il"), "cpu": ("digit10",), "tiny": ("digits-shift",)},
        BOTH_STEPS,
        ("acc", "bwt"),
        LAM,
        layout="sweep",
        figure="scatter",
        claims=(
            Claim("BWT rises with λ on {benchmark}", Rises("bwt")),
            Claim(
                "ACC is best at a λ in the middle on {benchmark}",
                Peaks("acc"),
                tried="γ_G = 1, with which the server itself brakes less (below), and more to forget (`lying-lambda`)",
            ),
            Claim(
                "With γ_G = 1, ACC is best at a λ in the middle on {benchmark}",
                Peaks("acc", "special server_lr=1"),
                ours=True,
            ),
            Claim(
                "ACC stays within 0.6 points of the best next to the best λ on {benchmark}",
                Band("acc", 0.6, published="best 0.25; 0.2: 0.06 less, 0.3: 0.6 less"),
                ("digit10",),
            ),
        ),
        note="λ = 0 is FedAvg. γ_G = 1 is not in the paper: with γ_G = 1/i the server's step shrinks from task to "
        "task, which brakes forgetting by itself.",
        pictured=True,
    ),
    Study(
        "location",
        "Client-side against server-side anchor",
        "curves of task 1, task 2 and their union during task 2",
        "where the anchor is: reads the runs of main, and SPECIAL-C with λ = 1",
        DIGITS,
        (Row("special"), Row("special-c"), STRONG_ROW),
        ("first_early", "second_early", "first_end", "second_end", "union_end", "first_gain"),
        figure="curves",
        claims=(
            Claim(
                "The client-side anchor protects task 1 better in the first rounds of task 2 on {benchmark}",
                Better("first_early", "special-c", "special"),
                tried="a stronger anchor on the clients (the third row, and the questions below)",
            ),
            Claim(
                "The client-side anchor learns task 2 more slowly on {benchmark}",
                Better("second_early", "special", "special-c"),
            ),
            Claim(
                "The server-side anchor reaches the higher accuracy on task 2 on {benchmark}",
                Better("second_end", "special", "special-c"),
            ),
            Claim(
                "The server-side anchor is better on both tasks together on {benchmark}",
                Better("union_end", "special", "special-c"),
            ),
            Claim(
                "With the server-side anchor task 1 improves in the second half of task 2 on {benchmark}",
                Positive("first_gain", "special"),
            ),
            Claim(
                "With λ = 1 the client-side anchor protects task 1 better on {benchmark}",
                Better("first_end", STRONG, "special"),
                ours=True,
            ),
            Claim(
                "The server-side anchor reaches the higher accuracy on task 2 than the client-side one with λ = 1 on "
                "{benchmark}",
                Better("second_end", "special", STRONG),
                ours=True,
            ),
            Claim(
                "The server-side anchor is better on both tasks together than the client-side one with λ = 1 on "
                "{benchmark}",
                Better("union_end", "special", STRONG),
                ours=True,
            ),
        ),
        note="Early: the first quarter of task 2's rounds. Late gain: last round against the middle one. Both: the "
        "mean of the two accuracies, each measured on equally many test samples.",
        pictured=True,
    ),
    Study(
        "rounds",
        "Rounds per task, T",
        "ablation over T",
        "T",
        DIGITS,
        BESIDE_FEDAVG,
        ("acc", "bwt"),
        Sweep("rounds", "T", {"paper": (1, 5, 10, 20, 30), "cpu": (1, 5, 10, 20, 30), "tiny": (1, 2, 4)}),
        layout="sweep",
        figure="lines",
        claims=(
            Claim("ACC rises with T on {benchmark}", Rises("acc")),
            Claim("BWT falls and then rises again with T on {benchmark}", Peaks("bwt", sign=-1)),
            Claim("SPECIAL's ACC is above FedAvg's at some T on {benchmark}", AHEAD, ours=True),
        ),
        note=FEDAVG_TOO,
        pictured=True,
    ),
    Study(
        "epochs",
        "ClientContext epochs, E",
        "ablation over E",
        "E",
        DIGITS,
        BESIDE_FEDAVG,
        ("acc", "bwt"),
        Sweep("local_epochs", "E", {"paper": (1, 3, 5, 10), "cpu": (1, 2, 3, 5, 10), "tiny": (1, 2)}),
        layout="sweep",
        figure="lines",
        claims=(
            Claim("ACC rises with E on {benchmark}", Rises("acc")),
            Claim("BWT falls with E on {benchmark}", Rises("bwt", sign=-1)),
            Claim("SPECIAL's ACC is above FedAvg's at some E on {benchmark}", AHEAD, ours=True),
        ),
        note=FEDAVG_TOO,
        pictured=True,
    ),
    Study(
        "alpha",
        "Heterogeneity, α",
        "ablation over α",
        "Dirichlet α",
        DIGITS,
        BESIDE_FEDAVG,
        ("acc", "bwt"),
        Sweep(
            "alpha",
            "α",
            {
                "paper": (0.05, 0.1, 0.3, 0.5, 1.0, 100),
                "cpu": (0.05, 0.1, 0.3, 0.5, 1.0, 100),
                "tiny": (0.5, 100),
            },
        ),
        layout="sweep",
        figure="lines",
        claims=(
            Claim("ACC rises with α (less heterogeneous clients) on {benchmark}", Rises("acc")),
            Claim("SPECIAL's ACC is above FedAvg's at some α on {benchmark}", AHEAD, ours=True),
        ),
        note=FEDAVG_TOO,
        pictured=True,
    ),
    Study(
        "lambda-c",
        "SPECIAL-C's λ",
        "λ-sensitivity of SPECIAL-C",
        "λ of SPECIAL-C from 0 to 1 by 0.2",
        DIGITS,
        (Row("special-c"),),
        ("acc", "bwt"),
        Sweep("lam", "λ", {"paper": COARSE, "cpu": COARSE, "tiny": TINY_LAM}),
        layout="sweep",
        figure="lines",
        claims=(
            Claim("SPECIAL-C's BWT rises with λ on {benchmark}", Rises("bwt", "special-c")),
            Claim("SPECIAL-C's ACC is best at a λ in the middle on {benchmark}", Peaks("acc", "special-c")),
        ),
        note="In print, λ = 0 (which is FedAvg) and λ = 0.2 disagree with the main table in BWT.",
    ),
    Study(
        "language",
        "Language",
        "GLUE sequence",
        "six methods that can do without images",
        {"paper": ("glue",), "cpu": ("glue",)},
        TEXT,
        ("acc", "bwt"),
        figure="dots",
        claims=(
            Claim("SPECIAL has the highest ACC on {benchmark}", Best("acc")),
            Claim("SPECIAL has the highest BWT on {benchmark}", Best("bwt")),
        ),
        note="At CPU scale: a bag of words instead of DistilBERT, MRPC in QQP's place.",
    ),
    Study(
        "class-incremental",
        "New classes instead of new domains",
        "Split CIFAR-100",
        "nine methods",
        {"paper": ("cifar100",), "cpu": ("cifar100",)},
        NINE,
        ("acc", "bwt", "acc_masked", "bwt_masked"),
        figure="dots",
        claims=(
            Claim("SPECIAL has the highest ACC on {benchmark}", Best("acc")),
            Claim("SPECIAL has the highest BWT on {benchmark}", Best("bwt")),
        ),
        note="Masked: only the task's own twenty classes compete. The paper does not say which of the two it prints.",
    ),
    Study(
        "full-model",
        "The paper's network on a small sample",
        "main table, Digit-10",
        "SPECIAL and FedAvg with ResNet-18, T = 20 and the paper's rates, 1,000 images a domain, one seed",
        {"cpu": ("digit10-resnet18",)},
        (Row("fedavg"), Row("special")),
        ("acc", "bwt", "worst_drop"),
        figure="matrices",
        seeds=(25,),
        printed_in=("main", "worst-drop"),
    ),
    Study(
        "theory",
        "Drift under its bound, and rates",
        "drift lemma; Corollary 1; Theorem 1",
        "sweeps on problems with known constants; the drift of SPECIAL's runs in main",
        DIGITS,
        SPECIAL,
        ("acc", "bwt"),
        figure="drift",
        claims=(
            Claim("SPECIAL's distance to the anchor stays under its cap in every round on {benchmark}", Certified()),
            Claim("The drift falls like 1/λ", Slope("lam", "drift", -1.0)),
            Claim(
                "With Corollary 1's steps the gradient falls like T^(−1/2)", Slope("rate", "min ‖grad f_1:K‖^2", -0.5)
            ),
            Claim("The stationary variance falls like 1/N", Slope("clients", "noise only", -1.0)),
        ),
        rates=("lam", "rounds", "clients", "epochs", "rate"),
    ),
)
