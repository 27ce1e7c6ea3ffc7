"""A benchmark: a sequence of domains, each with training and test samples, that share one label set."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedspecial.core.batches import Batch
from fedspecial.core.streams import stream
from fedspecial.core.targets import TargetKind
from fedspecial.data.input_arrays import kind_of, normalised, scale_and_shift
from fedspecial.data.read_on_demand import Transform
from fedspecial.data.samples import Domain, Samples, check_domain
from fedspecial.data.schema import DataSchema, Kind, TableEncoding, TextEncoding
from fedspecial.data.targets import (
    convert,
    is_class_labels,
    names_of,
    numbered,
    output_names,
    present_labels,
)
from fedspecial.errors import InputError


@dataclass(frozen=True)
class Benchmark:
    """Domains that are learned one after another.

    name:        the name in results
    domains:     the domains, in the order in which they are learned
    classes:     the names of the classes: label 0 is the first; without classes, the names of the model's outputs
    kind:        "image", "table", "text" or "other"; a method may support only some of them
    mean, std:   normalise uint8 images per channel when a batch is made; other inputs are used as they are
    incremental: "domain" (every domain has the same labels) or "class" (each domain adds new labels)
    licence:     the licence of the data, for the model card
    targets:     "classes", or what else the objective of the run needs; set by the run
    encoding:    how rows of a table or texts became inputs; None if the inputs were given as arrays
    """

    name: str
    domains: tuple[Domain, ...]
    classes: tuple[str, ...]
    kind: Kind = "image"
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    incremental: Literal["domain", "class"] = "domain"
    licence: str = "the user's own data"
    targets: TargetKind = "classes"
    encoding: TableEncoding | TextEncoding | None = None

    def __post_init__(self) -> None:
        if any(part.classes for domain in self.domains for part in (domain.train, domain.test)):
            numbered_domains = tuple(_number_labels(domain, self.classes) for domain in self.domains)
            object.__setattr__(self, "domains", numbered_domains)

    @staticmethod
    def of(
        source: Benchmark | Sequence[Domain], name: str = "own data", classes: Sequence[str] | None = None
    ) -> Benchmark:
        """Make a benchmark of a list of domains.

        Args:
            source: the domains in the order in which they are learned; or a benchmark, to give it other `classes`.
            name: the name in results.
            classes: the names of the classes; label i is the i-th of them. If not given, the classes are the names or
                numbers that occur as labels in any of the domains.
        """
        if isinstance(source, Benchmark):
            return source if classes is None else replace(source, classes=tuple(classes))
        if not isinstance(source, list | tuple):
            raise InputError(
                f"benchmark: expected a name, a Benchmark or a list of domains, not {type(source).__name__}; "
                "make each domain with Domain.of(name, train, test)"
            )
        if not source:
            raise InputError("benchmark: has no domains")
        for item in source:
            if not isinstance(item, Domain):
                raise InputError(
                    f"benchmark: {type(item).__name__} in the list of domains; "
                    "make each of them with Domain.of(name, train, test)"
                )
        domains, named = tuple(source), names_of(source)
        if classes is None and not named and all(is_class_labels(domain.train.y) for domain in domains):
            labels = present_labels([part.y for domain in domains for part in (domain.train, domain.test)])
            named = tuple(map(str, labels.tolist()))

            def numbered_by_name(samples: Samples) -> Samples:
                return replace(samples, y=torch.searchsorted(labels, samples.y), classes=named)

            domains = tuple(replace(d, train=numbered_by_name(d.train), test=numbered_by_name(d.test)) for d in domains)
        return Benchmark(name, domains, named if classes is None else tuple(classes), kind=kind_of(domains[0].train.x))

    def with_transforms(self, transform: Transform | None = None, test_transform: Transform | None = None) -> Benchmark:
        """The same domains with every input transformed when it is read: see `Domain.of`."""
        return replace(
            self,
            domains=tuple(
                replace(
                    domain,
                    train=Samples.of(domain.train, f"domain '{domain.name}' train", transform),
                    test=Samples.of(domain.test, f"domain '{domain.name}' test", test_transform),
                )
                for domain in self.domains
            ),
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.domains[0].train.x.shape[1:])

    @property
    def schema(self) -> DataSchema:
        """What a model that is trained on these domains needs to know about its inputs."""
        x, encoding = self.domains[0].train.x, self.encoding
        nested = not isinstance(x, Tensor) and x.is_nested
        images = not nested and x.dtype == torch.uint8  # parts of nested inputs are not normalised
        return DataSchema(
            self.kind,
            self.classes if self.targets == "classes" else None,
            None if nested else self.input_shape,
            None if nested else str(x.dtype).removeprefix("torch."),
            mean=self.mean if images else None,
            std=self.std if images else None,
            table=encoding if isinstance(encoding, TableEncoding) else None,
            text=encoding if isinstance(encoding, TextEncoding) else None,
        )

    @property
    def task_names(self) -> list[str]:
        """The names of the domains, in the order in which they are learned."""
        return [domain.name for domain in self.domains]

    def inputs(self, x: Batch) -> Batch:
        """Inputs as the model expects them: images normalised, anything else unchanged."""
        if not isinstance(x, Tensor) or x.dtype != torch.uint8:
            return x
        if x.device not in self._scale_and_shift:
            self._scale_and_shift[x.device] = scale_and_shift(self.mean, self.std, x.device)
        return normalised(x, *self._scale_and_shift[x.device])

    @cached_property
    def _scale_and_shift(self) -> dict[torch.device, tuple[Tensor, Tensor]]:
        return {}

    def held_out(self, share: float, seed: int) -> Benchmark:
        """The same domains with new test parts, for tuning: of each class, `share` of the training samples become the
        test part, and the original test samples are left out. Without classes, samples are drawn from all."""
        by_class = self.targets == "classes"
        return replace(self, domains=tuple(_hold_out(domain, share, seed, by_class) for domain in self.domains))

    def with_targets(self, kind: TargetKind) -> Benchmark:
        """The same domains for an objective with such targets."""
        if kind == self.targets:
            return self
        if self.incremental == "class":
            raise InputError(f"benchmark '{self.name}': it adds classes with every domain, so it needs classification")

        def converted(samples: Samples) -> Samples:
            return replace(samples, y=convert(samples.y, kind))

        domains = tuple(replace(d, train=converted(d.train), test=converted(d.test)) for d in self.domains)
        names = output_names([part.y for d in domains for part in (d.train, d.test)], kind)
        enough = len(self.classes) == len(names) or (kind == "masks" and len(self.classes) > len(names))
        classes = self.classes if enough else names
        return replace(self, domains=domains, classes=classes, targets=kind)

    def check(self) -> Benchmark:
        """Raise `InputError` if no run could use this benchmark; returns itself."""
        if not self.domains:
            raise InputError(f"benchmark '{self.name}': has no domains")
        for kind, names in (("domain", self.task_names), ("class", self.classes)):
            _check_names(f"benchmark '{self.name}'", kind, names)
        for domain in self.domains:
            check_domain(domain, self.input_shape, len(self.classes), self.targets, self.kind == "table")
        if self.incremental == "domain" and self.targets == "classes":
            _check_common_labels(self.domains)
        return self


_STREAM_NAMES = {"emnist-transposed": "emnist-lying", "femnist-transposed": "femnist-lying"}
"""Domains that were renamed keep the name that their random streams were made from. Otherwise the rename would select
other samples, and results published before it could not be reproduced."""


def domain_stream(seed: int, purpose: str, domain: str) -> np.random.Generator:
    """The random stream for one choice among the samples of a domain, such as its split."""
    return stream(seed, purpose, _STREAM_NAMES.get(domain, domain))


def _hold_out(domain: Domain, share: float, seed: int, by_class: bool) -> Domain:
    if domain.sites is not None:
        raise InputError(
            f"holdout={share:g}: cannot be used, because the rows of domain '{domain.name}' belong to given sites"
        )
    order = domain_stream(seed, "holdout", domain.name).permutation(len(domain.train))
    labels = domain.train.y.numpy()[order] if by_class else np.zeros(len(order), dtype=np.int64)
    test = np.concatenate([order[labels == label][: round(share * (labels == label).sum())] for label in set(labels)])
    train = np.setdiff1d(order, test)
    columns = {name: values[train] for name, values in domain.columns.items()}
    return Domain(domain.name, domain.train.take(train), domain.train.take(np.sort(test)), columns=columns)


def _number_labels(domain: Domain, classes: Sequence[str]) -> Domain:
    """Labels that were given as names, by their positions among the classes of the benchmark."""

    def renumbered(samples: Samples, part: str) -> Samples:
        where = f"domain '{domain.name}' {part}"
        return Samples(samples.x, numbered(samples.y, samples.classes, classes, where)) if samples.classes else samples

    return replace(domain, train=renumbered(domain.train, "train"), test=renumbered(domain.test, "test"))


def _check_names(where: str, kind: str, names: Sequence[str]) -> None:
    """Names are unique, and stand in one line of tables and messages."""
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(f"{where}: the {kind} '{name}' occurs twice")
        if any(unicodedata.category(character) == "Cc" for character in name):
            raise InputError(f"{where}: the name {name!r} of a {kind} contains a line break or control character")


def _check_common_labels(domains: Sequence[Domain]) -> None:
    """A domain may lack a class that others have, but one that shares none with the earlier domains is an error."""
    seen = set(domains[0].train.y.tolist())
    for domain in domains[1:]:
        labels = set(domain.train.y.tolist())
        if not labels & seen:
            raise InputError(
                f"domain '{domain.name}': it shares no class with the domains before it; a domain-incremental run "
                "needs one label set"
            )
        seen |= labels
