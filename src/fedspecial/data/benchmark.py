"""A benchmark: a sequence of domains, each with training and test samples, that share one label set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedspecial.core.streams import stream
from fedspecial.errors import InputError


@dataclass(frozen=True)
class Samples:
    """Inputs and labels, decoded, in memory or memory-mapped.

    x: uint8 images (n, C, H, W), float32 features (n, d) or int64 tokens (n, length)
    y: int64 labels (n,)
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: np.ndarray | Tensor | slice) -> Samples:
        return Samples(self.x[rows], self.y[rows])

    @staticmethod
    def of(source: Any, name: str = "samples") -> Samples:
        """From `Samples`, a pair of arrays, or a `torch.utils.data.Dataset`, which is read once and kept in memory."""
        if isinstance(source, Samples):
            return source
        if isinstance(source, tuple) and len(source) == 2:
            x, y = (torch.as_tensor(part) for part in source)
        else:
            items = [source[index] for index in range(len(source))]
            if not items:
                raise InputError(f"{name}: the data set is empty")
            x = torch.stack([torch.as_tensor(item[0]) for item in items])
            y = torch.as_tensor([int(item[1]) for item in items])
        if x.dtype == torch.float64:
            x = x.float()
        if len(x) != len(y):
            raise InputError(f"{name}: {len(x)} inputs but {len(y)} labels")
        return Samples(x, y.long())


@dataclass(frozen=True)
class Domain:
    """The data of one task.

    sites: the training rows of each site, if the sites are given; None if the rows are to be partitioned
    """

    name: str
    train: Samples
    test: Samples
    sites: tuple[np.ndarray, ...] | None = None

    @staticmethod
    def of(name: str, train: Any, test: Any) -> Domain:
        """From arrays or data sets: ``Domain.of("scanner A", (x, y), (x_test, y_test))``."""
        return Domain(name, Samples.of(train, f"domain '{name}' train"), Samples.of(test, f"domain '{name}' test"))


@dataclass(frozen=True)
class Benchmark:
    """Domains that are learned one after another.

    mean, std:   normalise uint8 images per channel when a batch is made; other inputs are used as they are
    incremental: "domain" (every domain has the same labels) or "class" (each domain adds new labels)
    """

    name: str
    domains: tuple[Domain, ...]
    classes: tuple[str, ...]
    kind: Literal["image", "text", "table"] = "image"
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    incremental: Literal["domain", "class"] = "domain"
    licence: str = "the user's own data"

    @staticmethod
    def of(source: Benchmark | Sequence[Domain], name: str = "own data") -> Benchmark:
        """A benchmark as it is, or one made of a list of domains with classes numbered from 0."""
        if isinstance(source, Benchmark):
            return source
        if not source:
            raise InputError("benchmark: has no domains")
        num_classes = 1 + max(int(domain.train.y.max()) if len(domain.train) else 0 for domain in source)
        return Benchmark(name, tuple(source), tuple(map(str, range(num_classes))))

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.domains[0].train.x.shape[1:])

    @property
    def task_names(self) -> list[str]:
        return [domain.name for domain in self.domains]

    def inputs(self, x: Tensor) -> Tensor:
        """Inputs as the model expects them: images normalised, anything else unchanged."""
        if x.dtype != torch.uint8:
            return x
        if x.device not in self._scale_and_shift:
            self._scale_and_shift[x.device] = self._make_scale_and_shift(x.device)
        scale, shift = self._scale_and_shift[x.device]
        return x.float().mul_(scale).add_(shift)

    @cached_property
    def _scale_and_shift(self) -> dict[torch.device, tuple[Tensor, Tensor]]:
        return {}

    def _make_scale_and_shift(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """(x/255 − mean)/std as one multiplication and one addition per channel."""
        mean, std = (torch.tensor(values, dtype=torch.float32).view(1, -1, 1, 1) for values in (self.mean, self.std))
        return (1 / (255 * std)).to(device), (-mean / std).to(device)

    def held_out(self, share: float, seed: int) -> Benchmark:
        """The same domains with new test parts, for tuning: of each class, `share` of the training samples become the
        test part, and the original test samples are left out."""
        return replace(self, domains=tuple(_hold_out(domain, share, seed) for domain in self.domains))

    def check(self) -> Benchmark:
        """Raise `InputError` if no run could use this benchmark; returns itself."""
        if not self.domains:
            raise InputError(f"benchmark '{self.name}': has no domains")
        names = self.task_names
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"benchmark '{self.name}': the domain '{name}' occurs twice")
        for domain in self.domains:
            _check_domain(domain, self.input_shape, len(self.classes))
        if self.incremental == "domain":
            _check_one_label_set(self.domains)
        return self


_STREAM_NAMES = {"emnist-transposed": "emnist-lying", "femnist-transposed": "femnist-lying"}
"""Domains that were renamed keep the name that their random streams were made from. Otherwise the rename would select
other samples, and results published before it could not be reproduced."""


def domain_stream(seed: int, purpose: str, domain: str) -> np.random.Generator:
    """The random stream for one choice among the samples of a domain, such as its split."""
    return stream(seed, purpose, _STREAM_NAMES.get(domain, domain))


def _hold_out(domain: Domain, share: float, seed: int) -> Domain:
    if domain.sites is not None:
        raise InputError(
            f"holdout={share:g}: cannot be used, because the rows of domain '{domain.name}' belong to given sites"
        )
    order = domain_stream(seed, "holdout", domain.name).permutation(len(domain.train))
    labels = domain.train.y.numpy()[order]
    test = np.concatenate([order[labels == label][: round(share * (labels == label).sum())] for label in set(labels)])
    train = np.setdiff1d(order, test)
    return Domain(domain.name, domain.train.take(train), domain.train.take(np.sort(test)))


def _check_domain(domain: Domain, shape: Sequence[int], num_classes: int) -> None:
    for part, samples in (("train", domain.train), ("test", domain.test)):
        where = f"domain '{domain.name}' {part}"
        if len(samples) == 0:
            raise InputError(f"{where}: has no samples")
        if tuple(samples.x.shape[1:]) != tuple(shape):
            found = "×".join(map(str, samples.x.shape[1:]))
            raise InputError(f"{where}: inputs have shape {found}, expected {'×'.join(map(str, shape))}")
        low, high = int(samples.y.min()), int(samples.y.max())
        if low < 0 or high >= num_classes:
            bad = low if low < 0 else high
            raise InputError(f"{where}: label {bad} is outside 0…{num_classes - 1}")
        if samples.x.is_floating_point() and bool(torch.isinf(samples.x).any()):
            raise InputError(f"{where}: inputs contain infinity")


def _check_one_label_set(domains: Sequence[Domain]) -> None:
    first = set(domains[0].train.y.tolist())
    for domain in domains[1:]:
        labels = set(domain.train.y.tolist())
        if labels != first:
            odd = sorted(labels ^ first)
            raise InputError(
                f"domain '{domain.name}': its labels differ from those of '{domains[0].name}' (in only one of "
                f"them: {odd}); a domain-incremental run needs one label set"
            )
