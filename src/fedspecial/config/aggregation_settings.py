"""Settings that say which updates of a round are used, and what is computed from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from fedspecial.config.values import Count, LazyModel, NonNegative, Positive
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.config.settings import Config
    from fedspecial.methods.base import Method

Aggregation = Literal["mean", "median", "trimmed-mean", "krum", "geometric-median"]


class AggregationSettings(LazyModel):
    """The part of a run's settings about aggregation; `Config` inherits it."""

    aggregation: Aggregation = Field(
        "mean",
        description="What is computed from the updates of a round: their mean, or a robust mean that a few faulty "
        "clients cannot move far.",
    )
    max_faulty: Count = Field(
        1, description="Faulty clients per round that a robust aggregation has to tolerate (f); it needs enough others."
    )
    clip_norm: Positive | None = Field(
        None, description="Scale every update down to at most this Euclidean norm; no clipping if not set."
    )
    norm_limit: NonNegative = Field(
        0.0,
        description="Refuse an update above this many times the median norm of the round, or of the client's last "
        "five. On Flower: 10.",
    )

    @property
    def required_updates(self) -> int:
        """How many updates a round needs for the aggregation to tolerate `max_faulty` of them."""
        if self.aggregation == "mean":
            return 1
        return 2 * self.max_faulty + (3 if self.aggregation == "krum" else 1)


def check_aggregation(config: Config, method: Method) -> None:
    """Refuse, before the run starts, what a robust mean cannot do."""
    rule, needed = config.aggregation, config.required_updates
    if rule == "mean":
        return
    if config.clients_per_round < needed:
        raise InputError(
            f"aggregation={rule}: with max_faulty={config.max_faulty} it needs {needed} updates, but "
            f"clients_per_round={config.clients_per_round}"
        )
    if config.weighting != "uniform":
        raise InputError(f"aggregation={rule}: every client counts the same; it excludes weighting={config.weighting}")
    if method.personal:
        raise InputError(
            f"aggregation={rule}: method={method.name} averages different vectors at different clients, so there may "
            "be too few of each; use aggregation=mean"
        )
