"""The event that charges the privacy of a round, and what it guarantees and does not, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

NOT_COVERED = (
    "training loss",
    "numbers of samples and of local steps",
    "numbers of test samples and of correct predictions, and what follows from them (accuracies, promotion)",
    "which sites answered",
    "norms and hashes of single updates in the audit log of a federation",
)
"""What depends on the clients' data and gets no noise."""


@dataclass(frozen=True)
class PrivacyCharged:
    """A noisy sum of updates is about to be used: the privacy that is spent with it and with all sums before it.

    epsilon:       ε for an observer who does not know which clients took part in which round
    epsilon_known: ε for an observer who knows it
    sampled:       clients of the round, as planned · clients: clients of the federation
    releases:      noisy sums so far, those of repeated rounds included
    simulated:     the noise is derived from the seed: ε says what the run would cost, and nobody is protected
    """

    event: ClassVar[str] = "privacy"
    task: int
    round: int
    epsilon: float
    epsilon_known: float
    delta: float
    noise_multiplier: float
    clip: float
    sampled: int
    clients: int
    releases: int
    simulated: bool


def privacy_summary(event: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the last event `privacy` that a result keeps, and what ε does not cover."""
    names = ("epsilon", "epsilon_known", "delta", "noise_multiplier", "clip", "sampled", "clients", "releases")
    return {
        **{name: event[name] for name in names},
        "simulated": event["simulated"],
        "unit": "site",
        "not_covered": list(NOT_COVERED),
    }


def privacy_lines(summary: Mapping[str, Any]) -> list[str]:
    """Sentences for a model card or a report."""
    name = "Simulated ε" if summary["simulated"] else "ε"
    amount = f"{name} = {summary['epsilon']:.4g} at δ = {summary['delta']:g}"
    if summary["epsilon_known"] > summary["epsilon"]:
        amount += (
            f" (ε = {summary['epsilon_known']:.4g} for an observer who knows which sites took part in which round)"
        )
    noise = (
        f"{summary['releases']} rounds, noise multiplier {summary['noise_multiplier']:.4g}, clip {summary['clip']:g}"
    )
    lines = [
        f"{amount}, for a whole site with all its data; {noise}, {summary['sampled']} of {summary['clients']} sites.",
        f"Not covered by ε: {'; '.join(summary['not_covered'])}.",
    ]
    if summary["simulated"]:
        lines.append("The noise is derived from the seed: ε says what a real run would cost, and nobody is protected.")
    if summary["epsilon"] > 10:
        lines.append("An ε above 10 excludes very little: e^ε bounds how much likelier any outcome becomes.")
    return lines
