"""All studies by name. A new study is one more entry in `comparisons`, `ablations` or `followups`, or a file."""

from __future__ import annotations

from fedspecial.errors import InputError, did_you_mean
from fedspecial.paper import asynchrony
from fedspecial.paper.ablations import ABLATIONS
from fedspecial.paper.anchor import ANCHOR
from fedspecial.paper.comparisons import COMPARISONS
from fedspecial.paper.followups import FOLLOW_UPS
from fedspecial.paper.spec import Study

STUDIES = (*COMPARISONS, *ABLATIONS, *FOLLOW_UPS, asynchrony.STUDY, *ANCHOR)
NAMES = tuple(study.name for study in STUDIES)


def find(name: str) -> Study:
    for study in STUDIES:
        if study.name == name:
            return study
    raise InputError(f"study '{name}': unknown study{did_you_mean(name, NAMES)}; available: {', '.join(NAMES)}")
