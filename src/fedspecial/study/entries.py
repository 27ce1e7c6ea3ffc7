"""The studies: every table and figure of the paper under a plain name. Adding one is one entry."""

from __future__ import annotations

from fedspecial.errors import InputError, did_you_mean
from fedspecial.study.ablations import ABLATIONS
from fedspecial.study.comparisons import COMPARISONS
from fedspecial.study.inquiries import INQUIRIES
from fedspecial.study.spec import Study

STUDIES = (*COMPARISONS, *ABLATIONS, *INQUIRIES)
NAMES = tuple(study.name for study in STUDIES)


def find(name: str) -> Study:
    for study in STUDIES:
        if study.name == name:
            return study
    raise InputError(f"study '{name}': there is no such study{did_you_mean(name, NAMES)}; known: {', '.join(NAMES)}")
