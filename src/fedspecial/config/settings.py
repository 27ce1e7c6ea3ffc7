"""The settings that every run has: type, default, range and description, in one place.

`fedspecial list settings`, `fedspecial run --help`, the JSON schema and docs/configuration.md are generated from
these fields. A method's own settings are the fields of its class.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from fedspecial.config.aggregation_settings import AggregationSettings
from fedspecial.config.asynchrony_settings import AsynchronySettings
from fedspecial.config.privacy_settings import PrivacySettings
from fedspecial.config.stream_settings import StreamSettings, check_stream
from fedspecial.config.values import (
    Count,
    NameOrObject,
    Names,
    NonNegative,
    Positive,
    ServerLr,
    Settings,
    Workers,
)


class Config(AggregationSettings, AsynchronySettings, PrivacySettings, StreamSettings):
    """All settings of a run except the method's own hyper-parameters."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True)

    benchmark: NameOrObject = Field(
        "digits-shift", description="The data: a name from `fedspecial list benchmarks`, or file.py:function."
    )
    data: str | None = Field(
        None, description="Folder with the data files; the environment variable FEDSPECIAL_DATA if not set."
    )
    domains: Names | None = Field(
        None, description="Domains to learn, in this order, such as usps,mnist; the benchmark's own list if not set."
    )
    cap: Count | None = Field(None, description="Training samples per domain at most, drawn at random; all if not set.")
    holdout: float = Field(
        0.0, ge=0, lt=1, description="Share of the training samples that replaces the test set, for tuning."
    )
    image_size: Count | None = Field(
        None, description="Side of the square images in pixels; the benchmark's own if not set."
    )
    on_bad: Literal["stop", "skip"] = Field(
        "stop", description="What to do with an unreadable sample: stop with an error, or skip, count and report it."
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of the benchmark's reader, such as label_column; they can also be given as settings.",
    )

    method: str = Field(
        "special", description="Learning method: a name from `fedspecial list methods`, or file.py:Class."
    )
    objective: NameOrObject = Field(
        "classification",
        description="Loss and metrics: classification, multilabel, regression, segmentation, or file.py:NAME.",
    )
    seed: int = Field(25, ge=0, description="Seed from which all random numbers of the run are derived.")
    rounds: Count = Field(20, description="Communication rounds per task (T).")
    local_epochs: Positive | None = Field(
        5.0, description="Passes over a client's data in one round (E); a fraction is allowed. Excludes local_steps."
    )
    local_steps: Count | None = Field(
        None, description="Optimizer steps of a client in one round, instead of local_epochs."
    )
    batch_size: Count = Field(32, description="Samples per local training batch.")
    min_batch: int = Field(
        2, ge=2, description="With BatchNorm: leave out the last batch of a pass if it has fewer samples. On Flower: 4."
    )

    clients: Count = Field(8, description="Clients in the federation (M).")
    clients_per_round: Count = Field(4, description="Clients sampled in each round (N).")
    partition: Literal["dirichlet", "iid", "shards", "quantity", "sites"] = Field(
        "dirichlet",
        description="How the samples of a domain are distributed over the clients; iid by default without classes.",
    )
    partition_by: str | None = Field(
        None, description="Column by which dirichlet and shards distribute the samples; the class if not set."
    )
    alpha: Positive = Field(0.1, description="Concentration of the Dirichlet distribution; smaller is more skewed.")
    min_per_client: int = Field(
        10, ge=0, description="The partition is redrawn (up to 1,000 times) until each client has this many samples."
    )
    shared_proportions: bool = Field(False, description="Use the same random stream for the partition of every task.")

    client_lr: NonNegative = Field(0.001, description="Learning rate of the clients (γ_L) in the first round.")
    client_lr_decay: Positive = Field(0.96, description="Factor by which client_lr is multiplied after each round.")
    client_lr_reset: bool = Field(True, description="Restart the decay of client_lr at the beginning of each task.")
    optimizer: Literal["sgd", "adamw"] = Field(
        "sgd", description="Optimizer of the clients; its state is not kept between rounds."
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="Momentum of SGD.")
    weight_decay: NonNegative = Field(0.0, description="Weight decay of the optimizer.")
    server_lr: ServerLr = Field(
        "1/i",
        description="Learning rate of the server (γ_G): 1/i in task i, as in the paper, or a number. If not set, 0.01 "
        "for adam, yogi, adagrad.",
    )
    server_optimizer: Literal["sgd", "momentum", "adam", "yogi", "adagrad"] = Field(
        "sgd", description="Optimizer of the server: plain steps (FedAvg), FedAvgM, FedAdam, FedYogi or FedAdagrad."
    )
    server_momentum: float = Field(0.9, ge=0, lt=1, description="β of server_optimizer=momentum.")
    server_beta1: float | None = Field(
        None, ge=0, lt=1, description="β1 of adam, yogi and adagrad at the server; 0.9 if not set, for adagrad 0."
    )
    server_beta2: float = Field(0.99, ge=0, lt=1, description="β2 of adam and yogi at the server.")
    server_tau: Positive = Field(0.001, description="τ of adam, yogi and adagrad at the server, added to √v.")
    server_optimizer_reset: bool = Field(
        True, description="Let the server optimizer forget its momentum and scale at the beginning of each task."
    )
    weighting: Literal["uniform", "samples", "registered"] = Field(
        "uniform",
        description="Weights in the mean of the updates: equal, by sample count, or equal with the sum divided by M.",
    )
    batch_norm: Literal["average", "mean-only", "local", "bank"] = Field(
        "average",
        description="BatchNorm statistics: averaged and anchored like weights, only averaged, kept by each client, "
        "or a set for each task.",
    )
    bank_temperature: NonNegative = Field(
        0.2,
        description="How softly batch_norm=bank mixes the statistics of tasks for a sample; 0: those that fit it best.",
    )
    bank_choice: Literal["fit", "task"] = Field(
        "fit",
        description="Statistics of batch_norm=bank for a test sample: those that fit it, or those of its task, "
        "which it is told (for comparison).",
    )
    bank_size: Count = Field(
        16, description="Sets of statistics that batch_norm=bank keeps of earlier tasks; the most alike are merged."
    )

    model: NameOrObject = Field(
        "resnet18", description="The network: a name from `fedspecial list models`, or file.py:Class."
    )
    width: Count | None = Field(None, description="Channels or hidden units of the model; its own default if not set.")
    encoder: str | None = Field(
        None, description="Pretrained encoder of model=transformer: a folder, an installed package or a hub name."
    )
    weights: str | None = Field(
        None, description="A safetensors file with initial weights (torchvision's names for ResNet-18)."
    )

    device: str = Field(
        "cpu", description="Torch device on which clients train and models are evaluated: cpu, cuda, cuda:1, mps."
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Precision of local training; bfloat16: mixed precision (autocast), with weights in float32.",
    )
    deterministic: bool = Field(
        False, description="Use only algorithms of torch that give the same result every time; for GPUs, slower."
    )
    threads: Count = Field(1, description="Threads of torch. Floating-point sums, and so the result, depend on it.")
    workers: Workers | None = Field(
        None,
        description="Worker processes (1 if not set; auto: one per core) or Ray actors (all that fit). Same result.",
    )
    engine: Literal["local", "ray"] = Field(
        "local", description="Where the clients run: on this machine, or on Ray (needs the extra ray). Same result."
    )
    ray_address: str | None = Field(
        None,
        description="A running Ray cluster, auto or host:port; if not set, a Ray is started on this machine.",
    )
    cpus_per_client: Positive = Field(1.0, description="CPUs that a Ray actor reserves.")
    gpus_per_client: NonNegative = Field(0.0, description="GPUs that a Ray actor reserves; 0.25: four share a GPU.")
    eval_every: int = Field(
        1, ge=0, description="Evaluate whenever this many rounds have passed; 0: only at the end of each task."
    )
    eval_cap: Count | None = Field(
        None, description="Test samples per domain for evaluations within a task; all if not set."
    )
    estimate: bool = Field(False, description="Estimate the constants of the theory during the run.")
    checkpoint_seconds: NonNegative = Field(
        10.0, description="Seconds between checkpoints within a task; one is always written at its end."
    )
    trackers: Names | None = Field(
        None,
        description="Where numbers of every round are sent: csv, tensorboard, mlflow, wandb, trackio; one or several.",
    )
    out: str | None = Field(
        None, description="The new run directory; runs/BENCHMARK-METHOD-NUMBER if not set. Never overwritten."
    )

    @model_validator(mode="before")
    @classmethod
    def _default_partition(cls, given: Any) -> Any:
        """Without classes there is nothing that a Dirichlet distribution could be drawn over by default."""
        if not isinstance(given, dict) or given.get("objective", "classification") == "classification":
            return given
        return given if given.get("partition_by") else {"partition": "iid", **given}

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.clients_per_round > self.clients:
            raise ValueError(
                f"clients_per_round={self.clients_per_round}: there are only clients={self.clients}; "
                "choose at most that many"
            )
        if self.local_steps is None and self.local_epochs is None:
            raise ValueError("local_epochs=null: set local_epochs or local_steps")
        if self.partition_by is not None and self.partition not in ("dirichlet", "shards"):
            raise ValueError(f"partition_by={self.partition_by}: only for partition=dirichlet or shards")
        check_stream(self)
        return self

    def server_lr_of(self, task: int) -> float:
        """γ_G of task i: 1/i as in the paper, or a number."""
        return 1 / task if self.server_lr == "1/i" else float(self.server_lr)

    @property
    def adaptive(self) -> bool:
        """Whether a round is more than plain SGD: another optimizer of the clients or of the server."""
        return self.optimizer != "sgd" or self.server_optimizer != "sgd"

    @property
    def first_moment_decay(self) -> float:
        """β1 of the server optimizer; FedAdagrad was proposed without momentum."""
        if self.server_beta1 is not None:
            return self.server_beta1
        return 0.0 if self.server_optimizer == "adagrad" else 0.9

    def client_lr_of(self, task: int, round: int) -> float:
        """γ_L of a round: it decays every round and, with `client_lr_reset`, restarts at each task."""
        age = round if self.client_lr_reset else (task - 1) * self.rounds + round
        return self.client_lr * self.client_lr_decay**age

    @property
    def steps_per_task(self) -> int:
        """Server steps of a task; in asynchronous mode, where updates may be lost, about as many."""
        return -(-self.rounds * self.clients_per_round // self.buffer_size) if self.asynchronous else self.rounds

    @property
    def buffer_size(self) -> int:
        return self.buffer or self.clients_per_round

    def options_for(self, known: Collection[str]) -> Settings:
        """Options of the benchmark's reader. A reader with an option `encoder` gets the run's encoder by default."""
        return {"encoder": self.encoder, **self.options} if self.encoder and "encoder" in known else self.options


GROUPS: dict[str, tuple[str, ...]] = {
    topic: tuple(names.split())
    for topic, names in {
        "Data": "benchmark data domains cap holdout image_size on_bad options",
        "Training": "method objective seed rounds local_epochs local_steps batch_size min_batch",
        "Stream": "stream blend_rounds stagger_rounds repeats detect detect_threshold detect_pause",
        "Clients": "clients clients_per_round partition partition_by alpha min_per_client shared_proportions",
        "Optimization": """
            client_lr client_lr_decay client_lr_reset optimizer momentum weight_decay server_lr server_optimizer
            server_momentum server_beta1 server_beta2 server_tau server_optimizer_reset weighting batch_norm
            bank_temperature bank_choice bank_size
        """,
        "Aggregation": "aggregation max_faulty clip_norm norm_limit",
        "Asynchrony and time": """
            mode buffer staleness staleness_exponent staleness_hinge max_staleness staleness_normalise
            scale_steps latency latency_seconds latency_spread client_speed availability drop_rate
            deadline_seconds min_updates over_select
        """,
        "Privacy": "dp_clip dp_noise_multiplier dp_epsilon dp_delta",
        "Model": "model width encoder weights",
        "Execution and output": """
            device precision deterministic threads workers engine ray_address cpus_per_client gpus_per_client
            eval_every eval_cap estimate checkpoint_seconds trackers out
        """,
    }.items()
}
"""The settings by topic, in the order in which they are shown."""


EXECUTION = frozenset({"workers", "engine", "ray_address", "cpus_per_client", "gpus_per_client", "trackers"})
"""Settings that say how a run is executed and not what it computes: they may change when it is resumed, and do not
belong to its identity."""


def data_folder(config: Config) -> Path | None:
    """The folder with real data: the setting `data`, or the environment variable FEDSPECIAL_DATA."""
    folder = config.data or os.environ.get("FEDSPECIAL_DATA")
    return Path(folder) if folder else None
