"""The policy of a federation's rounds: quorum, timeouts, retries, and the limits of the promotion gate."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from fedspecial.config import Settings, parse_settings
from fedspecial.errors import InputError
from fedspecial.flower.governance.promotion import PromotionLimits

OnNoQuorum = Literal["retry", "skip", "stop"]
OnRefusedModel = Literal["stop", "continue"]


@dataclass(frozen=True)
class RoundPolicy:
    """
    quorum:              fraction of the requested sites whose replies must be usable for the round to count
    on_no_quorum:        without a quorum: repeat the request (retry), continue with the old model (skip), or end the
                         run (stop)
    retries:             how often the request of a round is repeated before the run stops
    reply_seconds:       how long a site may take to reply
    grace_seconds:       how long a round with a quorum still waits for the other sites
    wait_seconds:        how long the server waits for enough sites to connect
    max_reply_megabytes: larger replies are refused, also those that would only unpack to more
    allow_unregistered:  accept nodes that are registered under no name at the SuperLink (a trial without keys)
    on_refused_model:    if the promotion gate refuses the model of a task: end the run, so that an operator decides
                         (stop), or take it as the base of the next task (continue)
    keep_checkpoints:    how many rounds `fedspecial flower rollback` can go back to; 0: none
    max_drop, max_site_drop, allow_unknown, min_accuracy, above_chance, min_tested, max_site_share:
                         limits of the promotion gate, see `PromotionLimits`
    """

    quorum: float = 0.5
    on_no_quorum: OnNoQuorum = "retry"
    retries: int = 3
    reply_seconds: float = 3600.0
    grace_seconds: float = 300.0
    wait_seconds: float = 600.0
    max_reply_megabytes: float = 2000.0
    allow_unregistered: bool = False
    on_refused_model: OnRefusedModel = "stop"
    keep_checkpoints: int = 5
    max_drop: float = 0.02
    max_site_drop: float = 0.05
    allow_unknown: bool = False
    min_accuracy: float = 0.0
    above_chance: bool = True
    min_tested: int = 20
    max_site_share: float = 0.6

    def __post_init__(self) -> None:
        for field in fields(self):
            value = _check_type(field.name, getattr(self, field.name), type(field.default))
            object.__setattr__(self, field.name, value)
        if not 0 < self.quorum <= 1:
            raise InputError(f"quorum={self.quorum:g}: must be above 0 and at most 1")
        if self.on_no_quorum not in get_args(OnNoQuorum):
            raise InputError(f"on_no_quorum={self.on_no_quorum}: expected {', '.join(get_args(OnNoQuorum))}")
        if self.on_refused_model not in get_args(OnRefusedModel):
            raise InputError(
                f"on_refused_model={self.on_refused_model}: expected {', '.join(get_args(OnRefusedModel))}"
            )
        for name in ("retries", "keep_checkpoints"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}={getattr(self, name)}: must be 0 or more")
        for name in ("reply_seconds", "grace_seconds", "wait_seconds", "max_reply_megabytes"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}={getattr(self, name):g}: must be above 0")
        _ = self.limits

    @property
    def limits(self) -> PromotionLimits:
        return PromotionLimits(**{field.name: getattr(self, field.name) for field in fields(PromotionLimits)})

    def quorum_size(self, requested: int) -> int:
        """How many usable replies are a quorum of this many requests; at least one."""
        return max(1, math.ceil(self.quorum * requested - 1e-9))  # 0.55 · 20 is slightly above 11 in floating point

    def settings(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def split_settings(cls, settings: Mapping[str, Any]) -> tuple[RoundPolicy, dict[str, Any]]:
        """(the policy in these settings, all other settings)."""
        names = {field.name for field in fields(cls)}
        own = {name: value for name, value in settings.items() if name in names}
        return cls(**own), {name: value for name, value in settings.items() if name not in names}


def split_run_config(run_config: Mapping[str, Any]) -> tuple[RoundPolicy, Settings]:
    """Split Flower's run config into the policy and the settings of the run, as `config.merge_settings` reads them.

    Flower accepts only keys that are listed in pyproject.toml. So further settings are given as text, in `hyper` and
    `more`.
    """
    policy, settings = RoundPolicy.split_settings(run_config)
    for key in ("hyper", "more"):
        text = str(settings.pop(key, ""))
        try:
            pairs = parse_settings(shlex.split(text))
        except ValueError as error:
            raise InputError(f"{key}={text}: {error}") from None
        for name, value in pairs.items():
            if name in settings or name in policy.settings():
                raise InputError(f"{key}: {name}={value} is given twice")
            settings[name] = value
    return policy, settings


def _check_type(name: str, value: Any, kind: type) -> Any:
    """An int is accepted for a float; nothing else is converted."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        expected = {float: "a number", int: "an integer", bool: "true or false", str: "text"}
        raise InputError(f"{name}={value}: expected {expected[kind]}")
    return value
