"""The studies: every table and figure of the paper under a plain name. Adding one is one entry."""

from __future__ import annotations

from fedspecial.errors import InputError, did_you_mean
from fedspecial.paper.ablations import ABLATIONS
from fedspecial.paper.comparisons import COMPARISONS
from fedspecial.paper.followups import INQUIRIES
from fedspecial.paper.spec import Study

STUDIES = (*COMPARISONS, *ABLATIONS, *INQUIRIES)
NAMES = tuple(study.name for study in STUDIES)


def find(name: str) -> Study:
    for study in STUDIES:
        if study.name == name:
            return study
    raise InputError(f"study '{name}': there is no such study{did_you_mean(name, NAMES)}; known: {', '.join(NAMES)}")
