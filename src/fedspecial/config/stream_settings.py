"""Settings of the stream of domains: how one domain follows another, and who notices it."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from fedspecial.config.values import Count, LazyModel, Positive
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.methods.base import Method

StreamKind = Literal["sharp", "blended", "staggered", "recurring"]
Detector = Literal["none", "loss", "adwin", "page-hinkley"]


class StreamSettings(LazyModel):
    """The part of a run's settings about the stream; `Config` inherits it."""

    stream: StreamKind = Field(
        "sharp",
        description="How domains follow each other: all clients at once, mixed around a border, each client at its own "
        "time, or returning.",
    )
    blend_rounds: Count | None = Field(
        None,
        description="Rounds around a border in which the share of the new domain grows (stream=blended); half of "
        "rounds if not set.",
    )
    stagger_rounds: Count | None = Field(
        None,
        description="Rounds around a border in which the clients change (stream=staggered); half of rounds if not set.",
    )
    repeats: Count | None = Field(
        None, description="How often the list of domains is learned (stream=recurring); 2 if not set."
    )
    detect: Detector = Field(
        "none",
        description="How a new task is noticed: announced (none), or found from the loss of each client's first batch.",
    )
    detect_threshold: Positive | None = Field(
        None,
        description="Threshold of the detector; its own default if not set (loss 5, adwin 0.002, page-hinkley 0.5).",
    )
    detect_pause: int = Field(5, ge=0, description="Rounds after a new task began in which no other one is detected.")

    @property
    def stream_width(self) -> int:
        """The rounds that a change of domain takes; 0 where it is sharp."""
        widths = {"blended": self.blend_rounds, "staggered": self.stagger_rounds}
        if self.stream not in widths:
            return 0
        rounds: int = getattr(self, "rounds")  # noqa: B009 (a field of the class that inherits this one)
        return widths[self.stream] or max(1, rounds // 2)

    @property
    def passes(self) -> int:
        """How often the list of domains is learned."""
        return (self.repeats or 2) if self.stream == "recurring" else 1


_OWNER = {"blend_rounds": "blended", "stagger_rounds": "staggered", "repeats": "recurring"}


def check_stream(config: Any) -> None:
    """Refuse a stream that is shorter than its blend, and settings of another stream."""
    for name, owner in _OWNER.items():
        value = getattr(config, name)
        if value is not None and config.stream != owner:
            raise ValueError(f"{name}={value}: only for stream={owner}, not stream={config.stream}")
        if value is not None and name != "repeats" and value > config.rounds:
            raise ValueError(f"{name}={value}: longer than a domain lasts, which is rounds={config.rounds}")
    if config.detect_threshold is not None and config.detect == "none":
        raise ValueError(f"detect_threshold={config.detect_threshold:g}: nothing is detected with detect=none")
    if config.estimate and (config.stream_width or config.detect != "none"):
        field = f"detect={config.detect}" if config.detect != "none" else f"stream={config.stream}"
        raise ValueError(f"{field}: not with estimate=true, which needs one domain in each task")


def check_detection(config: Any, method: Method) -> None:
    """Refuse a detector where it cannot be used: one line that names the setting."""
    if config.asynchronous and (config.stream_width or config.detect != "none"):
        field = f"detect={config.detect}" if config.detect != "none" else f"stream={config.stream}"
        raise InputError(f"{field}: not with mode=async, in which there are no rounds to follow the stream by")
    if config.detect == "none":
        return
    if config.dp_clip is not None:
        raise InputError(
            f"detect={config.detect}: not with differential privacy (dp_clip): the loss of a client is sent without "
            "noise, which is not covered by ε"
        )
    if method.simulation_only:
        raise InputError(
            f"detect={config.detect}: not with method={method.name}, a reference for which it makes no difference when "
            "a task begins"
        )
    if config.detect in ("adwin", "page-hinkley") and importlib.util.find_spec("river") is None:
        raise InputError(
            f'detect={config.detect}: needs the package river; install it with: pip install "fedspecial[detect]"'
        )
