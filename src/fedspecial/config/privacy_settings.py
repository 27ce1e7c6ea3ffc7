"""Settings of central differential privacy, and what cannot be combined with it.

Differential privacy holds for the noisy sum of clipped updates. So nothing else that depends on single updates, and
nothing that depends on the data without a bound, may reach the model: each such setting is refused, with its reason.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from fedspecial.config.values import LazyModel, Positive
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.methods.base import Method


class PrivacySettings(LazyModel):
    """The settings `dp_*`; there is no differential privacy unless `dp_clip` is set."""

    dp_clip: Positive | None = Field(
        None, description="Differential privacy: largest norm C of a client's whole update; longer ones are scaled."
    )
    dp_noise_multiplier: Positive | None = Field(
        None, description="Standard deviation of the Gaussian noise on the sum of the updates, in units of dp_clip."
    )
    dp_epsilon: Positive | None = Field(
        None,
        description="Privacy budget ε for all rounds of all tasks; gives the noise. The run stops before it exceeds ε.",
    )
    dp_delta: float = Field(1e-5, gt=0, lt=1, description="δ of (ε, δ)-differential privacy.")

    @model_validator(mode="after")
    def _complete_privacy(self) -> PrivacySettings:
        given = {"dp_noise_multiplier": self.dp_noise_multiplier, "dp_epsilon": self.dp_epsilon}
        strengths = [f"{name}={value:g}" for name, value in given.items() if value is not None]
        if self.dp_clip is None and strengths:
            raise ValueError(f"{strengths[0]}: noise needs a bound on the updates; give dp_clip too")
        if self.dp_clip is not None and len(strengths) != 1:
            both = " and ".join(strengths) or f"dp_clip={self.dp_clip:g}"
            raise ValueError(f"{both}: give dp_noise_multiplier or dp_epsilon, one of them")
        return self


_ROBUST = ("median", "trimmed-mean", "krum", "geometric-median")
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "aggregation": (_ROBUST, "a robust mean has no bound on what one client changes in it"),
    "weighting": (("samples",), "a site's number of samples would set its share of the sum, which is then not bounded"),
    "estimate": ((True,), "the constants are estimated from gradients of single clients, without noise"),
}
"""Setting → the values that differential privacy excludes, and why."""


def check_privacy(config: Any, method: Method) -> None:
    """Refuse what cannot be combined with differential privacy: one line that names the setting."""
    if config.dp_clip is None:
        return
    for name, (values, reason) in _REFUSED.items():
        if (value := getattr(config, name)) in values:
            shown = str(value).lower() if isinstance(value, bool) else value
            raise InputError(f"{name}={shown}: not with differential privacy (dp_clip): {reason}")
    for name in ("clip_norm", "norm_limit"):
        if value := getattr(config, name):
            raise InputError(f"{name}={value:g}: not with differential privacy, which bounds every update by dp_clip")
    if not type(method).needs_only_sum:
        raise InputError(
            f"method={method.name}: not with differential privacy (dp_clip): its server half uses more than the sum of "
            "the updates (single updates, statistics or answers of clients), which is not covered by ε"
        )
    if getattr(method, "mu", None) is not None and config.local_steps is None:
        raise InputError(
            f"mu={method.mu:g}: not with differential privacy (dp_clip) and local_epochs: λ would depend on the sites' "  # type: ignore[attr-defined]
            "numbers of samples; give lam, or local_steps"
        )
    if getattr(method, "lam", None) == "auto" and config.local_steps is None:
        raise InputError(
            "lam=auto: not with differential privacy (dp_clip) and local_epochs: λ would depend on the sites' numbers "
            "of samples; give lam, or local_steps"
        )
    if importlib.util.find_spec("dp_accounting") is None:
        raise InputError(
            f"dp_clip={config.dp_clip:g}: needs the package dp-accounting; "
            'install it with: pip install "fedspecial[privacy]"'
        )
