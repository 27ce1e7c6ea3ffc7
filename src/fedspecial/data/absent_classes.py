"""Domains that lack a class which other domains have. The label set is fixed for a run; a gap is reported, with counts.

Metrics of such a domain are over the classes that its test samples have (`objectives/classification.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedspecial.data.benchmark import Benchmark
from fedspecial.data.samples import Domain

Counts = dict[str, tuple[int, int]]
"""Class → numbers of training and test samples."""


def class_counts(domain: Domain, classes: Sequence[str]) -> Counts:
    train, test = (torch.bincount(part.y, minlength=len(classes)).tolist() for part in (domain.train, domain.test))
    return {name: (train[label], test[label]) for label, name in enumerate(classes)}


def absent_classes(benchmark: Benchmark, domain: Domain) -> Counts:
    """The classes without training or without test samples in this domain. Empty where the domain has no samples at
    all (the server of a real federation sees none), and where each domain brings classes of its own."""
    comparable = benchmark.targets == "classes" and benchmark.incremental == "domain"
    if not comparable or not len(domain.train) or domain.train.y.dim() != 1:
        return {}
    return {name: counts for name, counts in class_counts(domain, benchmark.classes).items() if 0 in counts}


def describe_absent_classes(benchmark: Benchmark) -> list[str]:
    """One line for each domain that lacks a class."""
    lines = []
    for domain in benchmark.domains:
        if absent := absent_classes(benchmark, domain):
            lines.append(f"domain '{domain.name}': {describe(absent, class_counts(domain, benchmark.classes))}")
    return lines


def describe_single_class(benchmark: Benchmark) -> list[str]:
    """One line if all samples of all domains have the same class, so that an accuracy of 100 % means nothing."""
    if benchmark.targets != "classes" or len(benchmark.classes) != 1:
        return []
    return [f"label: '{benchmark.classes[0]}' is the only class, so every model is always right; check the labels"]


def describe(absent: Counts, every: Counts) -> str:
    """Which classes are absent, and how many samples the others have (training + test)."""
    missing = ", ".join(name if counts == (0, 0) else f"{name} ({_sum(counts)})" for name, counts in absent.items())
    present = ", ".join(f"{name} {_sum(counts)}" for name, counts in every.items() if name not in absent)
    return f"lacks {len(absent)} of {len(every)} classes: {missing}; it has {present}"


def _sum(counts: tuple[int, int]) -> str:
    return f"{counts[0]}+{counts[1]}"
