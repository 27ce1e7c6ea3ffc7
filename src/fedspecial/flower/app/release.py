"""Which versions of fedspecial may work together: those whose first two numbers are equal.

A version 1.4.2 works with 1.4.7, not with 1.5.0. The rule is applied to every message, on both sides, because a site
may be upgraded between two rounds.
"""

from __future__ import annotations

from fedspecial import __version__


def release_problem(other: str, who: str) -> str | None:
    """Why this version does not work with `other`, the version of `who`; None if it does."""
    if _minor(other) == _minor(__version__):
        return None
    return (
        f"{who} runs fedspecial {other or 'of an unknown version'}, here it is {__version__}; the first two numbers of "
        "the version must be equal"
    )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
