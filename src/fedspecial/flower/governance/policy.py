"""What the server of a federation asks of a round, and what it does when it does not get it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from fedspecial.config import Settings, parse_settings
from fedspecial.errors import InputError
from fedspecial.flower.governance.promotion import Limits

OnMissing = Literal["retry", "hold", "stop"]


@dataclass(frozen=True)
class Policy:
    """
    quorum:         part of the sites asked whose answers must be usable, or the round is not completed
    on_missing:     then: ask again (retry), go on with the old model (hold), or end the run (stop)
    retries:        how often a round is asked again before the run ends
    answer_seconds: how long a site may take to answer
    wait_seconds:   how long to wait for enough sites to be there
    max_megabytes:  the largest answer that is looked at
    max_drop, max_site_drop, allow_unknown: limits of the promotion gate, see `promotion.Limits`
    """

    quorum: float = 0.5
    on_missing: OnMissing = "retry"
    retries: int = 3
    answer_seconds: float = 3600.0
    wait_seconds: float = 600.0
    max_megabytes: float = 2000.0
    max_drop: float = 0.02
    max_site_drop: float = 0.05
    allow_unknown: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _typed(field.name, getattr(self, field.name), type(field.default)))
        if not 0 < self.quorum <= 1:
            raise InputError(f"quorum={self.quorum:g}: must be above 0 and at most 1")
        if self.on_missing not in get_args(OnMissing):
            raise InputError(f"on_missing={self.on_missing}: expected {', '.join(get_args(OnMissing))}")
        if self.retries < 0:
            raise InputError(f"retries={self.retries}: must be 0 or more")
        for name in ("answer_seconds", "wait_seconds", "max_megabytes"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}={getattr(self, name):g}: must be above 0")
        _ = self.limits

    @property
    def limits(self) -> Limits:
        return Limits(self.max_drop, self.max_site_drop, self.allow_unknown)

    def needed(self, asked: int) -> int:
        """Usable answers that so many make a quorum of; at least one."""
        return max(1, math.ceil(self.quorum * asked - 1e-9))  # 0.55 · 20 is a hair above 11 in floating point

    def enough(self, usable: int, asked: int) -> bool:
        return asked > 0 and usable >= self.needed(asked)

    def as_words(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def take(cls, settings: Mapping[str, Any]) -> tuple[Policy, dict[str, Any]]:
        """The policy among the words of a run, and the words that remain."""
        own = {field.name for field in fields(cls)}
        mine = {word: value for word, value in settings.items() if word in own}
        return cls(**mine), {word: value for word, value in settings.items() if word not in own}


def settle(run_config: Mapping[str, Any]) -> tuple[Policy, Settings]:
    """Flower's run config, taken apart: the policy, and the words of the run as `config.merge_settings` takes them.

    `hyper` and `more` hold further words as one text, since Flower knows only those that stand in pyproject.toml.
    """
    policy, settings = Policy.take(run_config)
    for name in ("hyper", "more"):
        text = str(settings.pop(name, ""))
        try:
            pairs = parse_settings(shlex.split(text))
        except ValueError as error:
            raise InputError(f"{name}={text}: {error}") from None
        for word, value in pairs.items():
            if word in settings or word in policy.as_words():
                raise InputError(f"{name}: {word}={value} is given twice")
            settings[word] = value
    return policy, settings


def _typed(name: str, value: Any, kind: type) -> Any:
    """Whole numbers may stand for others; nothing else is turned into something else."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        names = {float: "a number", int: "a whole number", bool: "true or false", str: "a word"}
        raise InputError(f"{name}={value}: expected {names[kind]}")
    return value
