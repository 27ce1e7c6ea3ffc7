"""How large a study is run: the paper's settings, small ones for a CPU, tiny ones on embedded data.

The sizes of "cpu" were set by looking at single FedAvg runs with seed 25 (is each domain learned, is there something to
forget, does it take about half a minute on one core?), before any two methods were compared. λ of SPECIAL and of
SPECIAL-C was searched for at these sizes by `fedspecial tune`, on validation data split off the training data, with the
three seeds; where the search found 0, which is FedAvg, the best λ above 0 was taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Setting:
    """The words of a benchmark at a scale.

    seconds: what a FedAvg run takes on one core, where that is known
    tuned:   words of a method that were searched for at this scale
    """

    label: str
    settings: Mapping[str, Any]
    seconds: float | None = None
    printed_as: str | None = None
    tuned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


_SMALL = {"model": "cnn", "width": 16, "alpha": 1, "client_lr": 0.1, "eval_every": 1, "eval_cap": 500}
_DIGITS = {"benchmark": "digit10", "domains": ["usps", "svhn", "femnist", "mnist"]}

SCALES: Mapping[str, Mapping[str, Setting]] = {
    "paper": {
        "digit10": Setting("Digit-10", {"benchmark": "digit10"}),
        "vlcs": Setting("VLCS", {"benchmark": "vlcs"}),
        "pacs": Setting("PACS", {"benchmark": "pacs"}),
        "dn4il": Setting("DN4IL", {"benchmark": "dn4il"}),
        "glue": Setting("GLUE", {"benchmark": "glue"}),
        "cifar100": Setting("Split CIFAR-100", {"benchmark": "cifar100"}),
    },
    "cpu": {
        "digit10": Setting(
            "Digit-10",
            {"benchmark": "digit10-cpu", "cap": 1500, "rounds": 10, "eval_every": 1, "eval_cap": 500},
            seconds=25,
            tuned={"special": {"lam": 0.05}, "special-c": {"lam": 0.1}},
        ),
        "digit10-lying": Setting(
            "Digit-10 with its third domain lying",
            {
                **{"benchmark": "digit10-cpu", "domains": ["usps", "svhn", "femnist-transposed", "mnist"]},
                **{"cap": 1500, "rounds": 10, "eval_every": 1, "eval_cap": 500},
            },
            seconds=25,
            printed_as="digit10",
            tuned={"special": {"lam": 0.05}, "special-c": {"lam": 0.05}},
        ),
        "vlcs": Setting("VLCS", {"benchmark": "vlcs", "image_size": 32, "rounds": 15, "local_epochs": 1, **_SMALL}, 25),
        "pacs": Setting(
            "PACS",
            {"benchmark": "pacs-cpu", "rounds": 15, "local_epochs": 1, "eval_every": 1, "eval_cap": 500},
            seconds=22,
            tuned={"special": {"lam": 0.1}, "special-c": {"lam": 0.05}},
        ),
        "dn4il": Setting(
            "DN4IL", {"benchmark": "dn4il", "image_size": 32, "rounds": 15, "local_epochs": 1, **_SMALL}, 60
        ),
        "glue": Setting(
            "GLUE",
            {
                **{"benchmark": "glue", "domains": ["sst2", "mrpc", "qnli"], "cap": 2000, "model": "text", "width": 16},
                **{"rounds": 10, "local_epochs": 2, "client_lr": 0.001, "eval_every": 1, "eval_cap": 500},
            },
            seconds=20,
        ),
        "cifar100": Setting(
            "Split CIFAR-100",
            {"benchmark": "cifar100-cpu", "rounds": 15, "eval_every": 1, "eval_cap": 500},
            seconds=25,
        ),
        "digit10-resnet18": Setting(
            "Digit-10, ResNet-18",
            {**_DIGITS, "cap": 1000, "eval_every": 5, "eval_cap": 500},
            seconds=900,
            printed_as="digit10",
        ),
    },
    "tiny": {
        "digits-shift": Setting(
            "digits-shift",
            {"benchmark": "digits-shift", "rounds": 4, "local_epochs": 2, "width": 8, "cap": 600, "eval_cap": 200},
            seconds=3,
        ),
    },
}

# How much longer than FedAvg a method takes; only for the time left and the costs in `fedspecial study list`.
TIMES_FEDAVG = {"fedcil": 5.0, "mfcl": 3.7, "srfdil": 1.6, "pfeddil": 2.0, "flwf2t": 1.5, "special-c": 1.1}
