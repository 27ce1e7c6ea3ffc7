"""Small runs whose models are known bit for bit, as a table: name → settings and how the run is executed.

A change that is not meant to change what is learned must not change the hash of any of these models in
`hashes.json`. The hash is that of the model's layout (names and shapes of its tensors) and of its float32 values, so a
renamed layer changes it as well. It is only comparable on the same type of CPU with the same torch.

Every setting that makes a run small is in this file; the others come from the preset. All data is rendered from data
that scikit-learn includes, or written by `factories` from fixed seeds, and no case reads an image format: files are
plain text, raw bytes, or gzip, whose contents do not depend on the version of zlib.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import torch

TESTS = Path(__file__).resolve().parent.parent
sys.path.extend(str(TESTS / folder) for folder in (".", "data", "flower"))

# Everything that is not public is imported here and in no other file of this folder.
import factories  # noqa: E402

import fedspecial  # noqa: E402
from processes import ENVIRONMENT  # noqa: E402
from toy_problems import learn_settings  # noqa: E402

with warnings.catch_warnings():  # Flower and its dependencies warn when they are imported
    warnings.simplefilter("ignore")
    from flower_fixtures import federate, finished

KILL_POINTS = TESTS / "resume" / "kill_points.py"
TRANSPOSED = "femnist-transposed"
METHODS = ("fedavg", "fedprox", "fedcil", "mfcl", "srfdil", "pfeddil", "flwf2t", "special-c", "special")

Settings = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A run.

    settings: of the run, `benchmark` and `method` among them
    files: writes the data files into a folder; None if the benchmark is embedded
    mode:  "in-process", "killed" with SIGKILL in its second task and resumed, or on Flower's in-process grid ("flower")
    """

    settings: Settings
    files: Callable[[Path], object] | None = None
    mode: Literal["in-process", "killed", "flower"] = "in-process"


def transposed_files(root: Path) -> None:
    for folder, parts in (
        ("MNIST/raw", ("train", "t10k")),
        ("FEMNIST-digits", ("femnist-digits-train", "femnist-digits-test")),
    ):
        for part in parts:
            factories.idx(root / folder, part, 40)


# Several steps per round, so that methods with a proximal term differ from FedAvg; accuracies are not compared.
BRIEF: Settings = {"rounds": 2, "seed": 25, "eval_every": 0, "eval_cap": 20}
DIGITS: Settings = {"benchmark": "digits-shift", "cap": 160, "local_epochs": 2, "batch_size": 8, "min_per_client": 4}
DIGITS |= BRIEF
# Two of the four domains, for cases that do not test a particular method.
PAIR: Settings = {**DIGITS, "domains": "paper,neon", "method": "fedavg"}
FEW: Settings = {"clients": 4, "clients_per_round": 3, "min_per_client": 2, "batch_size": 8, **BRIEF}

# Small networks, so that runs are fast, and a cache so small that samples must be selected for it.
SIZES: dict[str, Settings] = {
    "fedcil": {"generator_width": 4, "server_iterations": 2},
    "mfcl": {"generator_width": 4, "latent": 16, "synthetic": 8, "iterations": 20},
    "srfdil": {"cache": 10},
}

CASES: dict[str, Case] = {
    **{f"method-{name}": Case({**DIGITS, "method": name, **SIZES.get(name, {})}) for name in METHODS},
    "classes-that-grow": Case(
        {**FEW, "benchmark": "cifar100-cpu", "method": "special", "width": 4, "cap": 100}, factories.cifar
    ),
    "text": Case({**FEW, "benchmark": "text-cpu", "method": "special"}, factories.fdu),
    "heart": Case({**FEW, "benchmark": "heart", "method": "special"}, factories.heart),
    "transposed": Case(
        {**FEW, "benchmark": "digit10-cpu", "method": "special", "width": 4, "domains": f"mnist,{TRANSPOSED}"},
        transposed_files,
    ),
    "batch-norm-mean-only": Case({**PAIR, "batch_norm": "mean-only"}),
    "batch-norm-local": Case({**PAIR, "batch_norm": "local"}),
    "adamw": Case({**PAIR, "optimizer": "adamw", "client_lr": 0.003, "weight_decay": 0.01}),
    "fedprox-weight-decay": Case({**PAIR, "method": "fedprox", "mu_prox": 0.5, "weight_decay": 0.01}),
    "special-c-epoch-literal": Case(
        {**PAIR, "method": "special-c", "prox": "epoch_literal", "local_epochs": None, "local_steps": 2}
    ),
    "partition-shards": Case({**PAIR, "partition": "shards"}),
    "partition-quantity": Case({**PAIR, "partition": "quantity"}),
    "holdout": Case({**PAIR, "holdout": 0.25}),
    "killed-and-resumed": Case({**DIGITS, "method": "special", "checkpoint_seconds": 0}, mode="killed"),
    "flower-grid": Case(
        {**PAIR, "method": "special", "model": "cnn", "width": 16, "alpha": 1.0, "client_lr": 0.1,
         "clients_per_round": 3},
        mode="flower",
    ),
}  # fmt: skip


def learn(name: str, folder: Path) -> str:
    """Execute the case in an empty folder; returns the hash of its final model."""
    case = CASES[name]
    settings, run = dict(case.settings), folder / "run"
    if case.mode == "killed":
        return killed_and_resumed(settings, run)
    if case.mode == "flower":
        return str(finished(federate(folder, settings.pop("method"), **settings))["model_sha256"])
    if case.files is None:
        return learn_settings(run, **settings).model_sha256
    with (
        patch.object(factories, "RNG", np.random.default_rng(3)),
        patch.dict(os.environ, {"XDG_CACHE_HOME": str(folder / "cache")}),
    ):
        case.files(folder / "data")
        return learn_settings(run, **settings, data=str(folder / "data")).model_sha256


def killed_and_resumed(settings: Settings, run: Path) -> str:
    """Start the run in a process that is killed in the second task, and resume it in this process."""
    pairs = [f"{key}={value}" for key, value in {**settings, "out": run}.items() if key != "benchmark"]
    point = ["before a round's event", "3"]
    command = [sys.executable, str(KILL_POINTS), *point, "run", settings["benchmark"], *pairs]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (run / "result.json").exists()
    return fedspecial.resume(run).model_sha256


def machine() -> dict[str, str]:
    """What floating-point sums depend on: the CPU (name, model, instruction set that torch uses) and torch."""
    cpuinfo = {}
    if Path("/proc/cpuinfo").exists():
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
        cpuinfo = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    name = cpuinfo.get("model name") or platform.processor() or platform.machine()
    kind = [f"{key} {cpuinfo[key]}" for key in ("cpu family", "model") if key in cpuinfo]
    return {
        "cpu": f"{name} ({', '.join([*kind, torch.backends.cpu.get_cpu_capability()])})",
        "torch": str(torch.__version__),
    }
