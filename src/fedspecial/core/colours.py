"""Colours for domains and classes in figures, which readers who confuse red and green can tell apart."""

from __future__ import annotations

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#56b4e9", "#5b6570", "#e69f00", "#cc79a7", "#f0e442")
"""The colours of Okabe and Ito, with a grey instead of black, on which borders would not be seen. The order is one in
which neighbours differ clearly also without red or green; yellow, which is weak on white, is the last."""


def distinct_colours(count: int) -> list[str]:
    """One for each of `count` things, in order; after eight of them, darker ones of the same hues."""
    return [_darker(PALETTE[number % len(PALETTE)], number // len(PALETTE)) for number in range(count)]


def _darker(colour: str, times: int) -> str:
    parts = (int(colour[at : at + 2], 16) * 0.55**times for at in (1, 3, 5))
    return "#" + "".join(f"{round(part):02x}" for part in parts)
