"""The scale of a study: "paper" (the paper's settings), "cpu" (small settings), "tiny" (bundled data, for tests).

The sizes of "cpu" were chosen before any two methods were compared. The criteria were: each domain is learned,
forgetting is visible, a run takes at most half a minute on one core. One FedAvg run per benchmark on held-out training
data, with a seed that no study reports, checked them (`sizes`), and gave the durations: its processor time, divided by
the share of the training data that was not held out. The settings of the
methods at these sizes come from `fedspecial study tune-all` (`tuning`), or from the presets where it was not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BenchmarkAtScale:
    """The settings of a benchmark at a scale.

    seconds:      duration of a FedAvg run on one core, if known
    published_as: the benchmark whose published numbers are shown next to ours, if its name differs
    """

    label: str
    settings: Mapping[str, Any]
    seconds: float | None = None
    published_as: str | None = None


_SMALL = {"model": "cnn", "width": 16, "alpha": 1, "client_lr": 0.1, "eval_every": 1, "eval_cap": 500}
_DIGITS = {"benchmark": "digit10", "domains": ["usps", "svhn", "femnist", "mnist"]}

SCALES: Mapping[str, Mapping[str, BenchmarkAtScale]] = {
    "paper": {
        "digit10": BenchmarkAtScale("Digit-10", {"benchmark": "digit10"}),
        "vlcs": BenchmarkAtScale("VLCS", {"benchmark": "vlcs"}),
        "pacs": BenchmarkAtScale("PACS", {"benchmark": "pacs"}),
        "dn4il": BenchmarkAtScale("DN4IL", {"benchmark": "dn4il"}),
        "glue": BenchmarkAtScale("GLUE", {"benchmark": "glue"}),
        "cifar100": BenchmarkAtScale("Split CIFAR-100", {"benchmark": "cifar100"}),
    },
    "cpu": {
        "digit10": BenchmarkAtScale(
            "Digit-10",
            {"benchmark": "digit10-cpu", "cap": 1500, "rounds": 10, "eval_every": 1, "eval_cap": 500},
            seconds=13,
        ),
        "digit10-transposed": BenchmarkAtScale(
            "Digit-10 with the third domain transposed",
            {
                **{"benchmark": "digit10-cpu", "domains": ["usps", "svhn", "femnist-transposed", "mnist"]},
                **{"cap": 1500, "rounds": 10, "eval_every": 1, "eval_cap": 500},
            },
            seconds=13,
            published_as="digit10",
        ),
        "vlcs": BenchmarkAtScale(
            "VLCS", {"benchmark": "vlcs", "image_size": 32, "rounds": 15, "local_epochs": 1, **_SMALL}, 25
        ),
        "pacs": BenchmarkAtScale(
            "PACS",
            {"benchmark": "pacs-cpu", "rounds": 15, "local_epochs": 1, "eval_every": 1, "eval_cap": 500},
            seconds=14,
        ),
        "dn4il": BenchmarkAtScale(
            "DN4IL", {"benchmark": "dn4il", "image_size": 32, "rounds": 15, "local_epochs": 1, **_SMALL}, 60
        ),
        "glue": BenchmarkAtScale(
            "GLUE",
            {
                **{"benchmark": "glue", "domains": ["sst2", "mrpc", "qnli"], "cap": 2000, "model": "text", "width": 16},
                **{"rounds": 10, "local_epochs": 2, "client_lr": 0.001, "eval_every": 1, "eval_cap": 500},
            },
            seconds=6,
        ),
        "cifar100": BenchmarkAtScale(
            "Split CIFAR-100",
            {"benchmark": "cifar100-cpu", "rounds": 15, "eval_every": 1, "eval_cap": 500},
            seconds=20,
        ),
        "digits-shift": BenchmarkAtScale("digits-shift", {"benchmark": "digits-shift", "eval_every": 0}, seconds=21),
        "heart": BenchmarkAtScale("Heart disease", {"benchmark": "heart", "eval_every": 0}, seconds=5),
        "gas-drift": BenchmarkAtScale("Gas sensor drift", {"benchmark": "gas-drift", "eval_every": 0}, seconds=5),
        "spoken-digits": BenchmarkAtScale("Spoken digits", {"benchmark": "spoken-digits", "eval_every": 0}, seconds=16),
        "fdu-mtl": BenchmarkAtScale(
            "FDU-MTL", {"benchmark": "fdu-mtl", "rounds": 10, "eval_every": 0, "eval_cap": 500}, seconds=31
        ),
        "digit10-resnet18": BenchmarkAtScale(
            "Digit-10, ResNet-18",
            {**_DIGITS, "cap": 1000, "eval_every": 5, "eval_cap": 500},
            seconds=900,
            published_as="digit10",
        ),
        "digits-shift-clock": BenchmarkAtScale(
            "digits-shift with simulated time",
            {
                **{"benchmark": "digits-shift", "domains": ["paper", "neon", "photo"], "rounds": 8, "local_epochs": 2},
                **{"width": 8, "cap": 400, "eval_every": 1, "eval_cap": 200},
            },
            seconds=2,
        ),
    },
    "tiny": {
        "digits-shift": BenchmarkAtScale(
            "digits-shift",
            {"benchmark": "digits-shift", "rounds": 4, "local_epochs": 2, "width": 8, "cap": 600, "eval_cap": 200},
            seconds=3,
        ),
    },
}

# Duration of a method relative to FedAvg, used only for the time estimates.
TIMES_FEDAVG = {"fedcil": 5.0, "mfcl": 3.7, "srfdil": 1.6, "pfeddil": 2.0, "flwf2t": 1.5, "special-c": 1.1}
