"""Settings of asynchronous aggregation and of the simulated clock, and what cannot be combined with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedspecial.config.latency_file import read_latencies
from fedspecial.config.values import Count, LazyModel, NonNegative, Positive
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.config.settings import Config
    from fedspecial.methods.base import Method

Staleness = Literal["constant", "polynomial", "hinge"]
DISTRIBUTIONS = ("none", "constant", "exponential", "lognormal")
ONLY_ASYNCHRONOUS = (
    "buffer",
    "max_staleness",
    "staleness",
    "staleness_exponent",
    "staleness_hinge",
    "staleness_normalise",
    "scale_steps",
)


class AsynchronySettings(LazyModel):
    """The part of a run's settings about time: who is late, who is lost, and what the server does about it."""

    mode: Literal["sync", "async"] = Field(
        "sync", description="Rounds in which the server waits for its clients, or a server step after `buffer` updates."
    )
    buffer: Count | None = Field(
        None, description="Updates per server step of mode=async; clients_per_round if not set."
    )
    staleness: Staleness = Field(
        "polynomial",
        description="Weight of an update that is τ versions old: 1, (1+τ)^−a, or 1/(1+a·(τ−b)) from b versions on.",
    )
    staleness_exponent: NonNegative = Field(
        0.5, description="The exponent a of staleness=polynomial, the slope a of hinge."
    )
    staleness_hinge: NonNegative = Field(
        4.0, description="The limit b of staleness=hinge: up to this many versions the weight is 1."
    )
    max_staleness: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Updates that are more versions old than this are not used; no limit if not set."
    )
    staleness_normalise: Literal["count", "sum"] = Field(
        "count",
        description="Divide a step's weighted sum by the number of updates, or by the sum of the weights; the latter "
        "ignores common staleness.",
    )
    scale_steps: bool = Field(
        True, description="Multiply γ_G and λ of an asynchronous step by buffer/clients_per_round."
    )
    latency: str = Field(
        "none",
        description="Simulated time until an update arrives: none, constant, exponential, lognormal, or a CSV file "
        "(client,seconds).",
    )
    latency_seconds: Positive = Field(
        1.0, description="The constant latency, the mean of exponential, the median of lognormal."
    )
    latency_spread: NonNegative = Field(1.0, description="σ of latency=lognormal.")
    client_speed: NonNegative = Field(
        0.0, description="σ of a log-normal factor on the latency that each client keeps for the whole run."
    )
    availability: float = Field(1.0, gt=0, le=1, description="Probability that a client can be reached when asked.")
    drop_rate: float = Field(0.0, ge=0, lt=1, description="Probability that a client vanishes during its work.")
    deadline_seconds: Positive | None = Field(
        None, description="Simulated seconds after which a synchronous round closes; no deadline if not set."
    )
    min_updates: Count = Field(
        1, description="With fewer usable updates, a synchronous round leaves the model as it was."
    )
    over_select: Count | None = Field(
        None, description="Ask this many clients in a synchronous round and take the first clients_per_round updates."
    )

    @property
    def asynchronous(self) -> bool:
        return self.mode == "async"

    @property
    def has_clock(self) -> bool:
        """Whether time is simulated; without it a run is exactly as it would be without these settings."""
        return self.asynchronous or self.simulates_clients

    @property
    def simulates_clients(self) -> bool:
        """Whether clients are late, absent or vanish in simulation."""
        return self.availability < 1 or self.drop_rate > 0 or self.latency != "none"

    @property
    def staleness_rule(self) -> tuple[Staleness, float, float]:
        return self.staleness, self.staleness_exponent, self.staleness_hinge


def check_asynchrony(config: Config, method: Method) -> None:
    """Refuse, before the run starts, what contradicts itself: one line that names the setting."""
    if config.latency not in DISTRIBUTIONS:
        read_latencies(Path(config.latency), config.clients)
    _check_sizes(config)
    if not config.asynchronous:
        for name in ONLY_ASYNCHRONOUS:
            if _is_given(config, name):
                raise InputError(f"{_shown(config, name)}: only with mode=async")
        if config.over_select is not None and config.dp_clip is not None:
            raise InputError(
                f"over_select={config.over_select}: not with differential privacy (dp_clip): who answers first is not "
                "a random sample"
            )
        return
    for name, default in (("deadline_seconds", None), ("over_select", None), ("min_updates", 1)):
        if (value := getattr(config, name)) != default:
            raise InputError(f"{name}={value}: only with mode=sync; an asynchronous server does not wait for rounds")
    _check_combinations(config)
    _check_method(method)


def _check_sizes(config: Config) -> None:
    chosen = config.clients_per_round
    if config.buffer is not None and config.buffer > chosen:
        raise InputError(
            f"buffer={config.buffer}: at most clients_per_round={chosen} clients are at work, so it is never full"
        )
    if config.min_updates > chosen:
        raise InputError(f"min_updates={config.min_updates}: more than clients_per_round={chosen}")
    if config.over_select is not None and not chosen <= config.over_select <= config.clients:
        raise InputError(
            f"over_select={config.over_select}: expected at least clients_per_round={chosen} and at most "
            f"clients={config.clients}"
        )
    for name in ("over_select", "deadline_seconds", "client_speed"):
        if (value := getattr(config, name)) and config.latency == "none":
            raise InputError(f"{name}={value:g}: without latency nobody is later than others; give latency")
    if config.latency not in DISTRIBUTIONS[1:] and _is_given(config, "latency_seconds"):
        raise InputError(f"{_shown(config, 'latency_seconds')}: only with latency=constant, exponential or lognormal")
    if config.latency != "lognormal" and _is_given(config, "latency_spread"):
        raise InputError(f"{_shown(config, 'latency_spread')}: only with latency=lognormal")


def _is_given(config: Config, name: str) -> bool:
    return bool(getattr(config, name) != AsynchronySettings.model_fields[name].default)


def _shown(config: Config, name: str) -> str:
    value = getattr(config, name)
    if isinstance(value, bool):
        return f"{name}={str(value).lower()}"
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"


def _check_combinations(config: Config) -> None:
    if config.dp_clip is not None:
        raise InputError(
            f"mode=async: not with differential privacy (dp_clip={config.dp_clip:g}), which counts sampled rounds"
        )
    if config.aggregation != "mean":
        raise InputError(f"aggregation={config.aggregation}: not with mode=async; it has no weights for stale updates")
    if config.weighting == "registered":
        raise InputError(
            "weighting=registered: not with mode=async; a step does not hear from a fixed share of clients"
        )
    if config.estimate:
        raise InputError("estimate=true: not with mode=async; the constants are estimated where a round begins")


def _check_method(method: Method) -> None:
    from fedspecial.methods.base import Method as Base

    if not type(method).needs_only_sum:
        raise InputError(
            f"method={method.name}: not with mode=async: its server half uses more than the mean of the updates"
        )
    if type(method).sample_clients is not Base.sample_clients:
        raise InputError(f"method={method.name}: not with mode=async: it samples clients by a rule of its own")
