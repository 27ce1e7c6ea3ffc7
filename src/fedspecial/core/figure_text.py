"""Texts of figures that come from the user, such as the names of domains and classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def show_dollars(figure: Figure) -> None:
    """Show all texts of a figure as they are: matplotlib reads what stands between two dollar signs as a formula, and
    fails if it is none."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
