"""The samples of one domain: inputs with their targets, for training and for testing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from fedspecial.core.targets import TargetKind
from fedspecial.data.input_arrays import check_finite
from fedspecial.data.read_on_demand import (
    ArrayItems,
    DatasetInputs,
    Transform,
    array_inputs,
    check_map_style,
    targets_of,
)
from fedspecial.data.targets import check_targets, is_class_labels, read_targets
from fedspecial.errors import InputError


@dataclass(frozen=True)
class Samples:
    """Inputs and their targets: the training part or the test part of a domain. Make them with `Samples.of`.

    x: uint8 images (n, C, H, W), float32 features (n, d) or int64 tokens (n, length), in memory or memory-mapped; or
       an object that reads the samples of a data set on demand
    y: int64 labels (n,), or other targets, as the objective needs them
    classes: the names of the labels, if they were given as names and no benchmark has numbered them yet
    """

    x: Tensor
    y: Tensor
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: np.ndarray | Tensor | slice) -> Samples:
        """The samples of the given rows, in this order."""
        return Samples(self.x[rows], self.y[rows], self.classes)

    @staticmethod
    def of(source: Any, name: str = "samples", transform: Transform | None = None) -> Samples:
        """Make samples of arrays or of a data set.

        Args:
            source: a pair (inputs, targets) of arrays or tensors, where inputs may also be a dict or a tuple of them; a
                map-style `torch.utils.data.Dataset`, which is read batch by batch and never kept; or `Samples`.
            name: what error messages call them.
            transform: function of one input, applied each time a sample is read; it may be random.
        """
        x: Any
        if isinstance(source, Samples):
            x, y, classes = source.x, source.y, source.classes
        elif isinstance(source, tuple) and len(source) == 2:
            x = array_inputs(source[0], name)
            y, classes = read_targets(source[1], name)
        else:
            check_map_style(source, name)
            x = DatasetInputs(source, np.arange(len(source)), name, transform)
            y, classes = read_targets(targets_of(source, name), name)
            transform = None
        if len(x) != len(y):
            raise InputError(f"{name}: {len(x)} inputs but {len(y)} labels")
        if transform is not None:
            x = DatasetInputs(ArrayItems(x), np.arange(len(x)), name, transform)
        return Samples(x, y, classes)


@dataclass(frozen=True)
class Domain:
    """A source of data with its own look, such as one scanner; each domain is one task. Make it with `Domain.of`.

    name: the name in results and on the command line
    train, test: the samples for training and for testing
    sites: the training rows of each site, if the data comes from known sites; None if it is to be partitioned
    columns: further values of each training row by name, such as its ward; `partition_by` names one of them
    """

    name: str
    train: Samples
    test: Samples
    sites: tuple[np.ndarray, ...] | None = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    @staticmethod
    def of(
        name: str,
        train: Any,
        test: Any,
        columns: Mapping[str, Sequence[Any]] | None = None,
        *,
        transform: Transform | None = None,
        test_transform: Transform | None = None,
    ) -> Domain:
        """Make a domain of arrays or data sets: ``Domain.of("scanner A", (x, y), (x_test, y_test))``.

        Args:
            name: the name in results and on the command line.
            train: the training samples: a pair (inputs, targets), a map-style `torch.utils.data.Dataset`, or `Samples`.
            test: the test samples, in the same form.
            columns: further values of each training row, by name; `partition_by` names one of them.
            transform: function of one training input, applied each time it is read; it may be random.
            test_transform: the same for test inputs.
        """
        if not isinstance(name, str) or not name:
            raise InputError(f"domain {name!r}: the name of a domain is a text that is not empty")
        samples = Samples.of(train, f"domain '{name}' train", transform)
        named = {key: np.asarray(values) for key, values in (columns or {}).items()}
        for key, values in named.items():
            if values.shape != (len(samples),):
                raise InputError(f"domain '{name}': column '{key}' needs one value for each of its training samples")
        return Domain(name, samples, Samples.of(test, f"domain '{name}' test", test_transform), columns=named)

    def labels_to_divide(self, partition: str, column: str | None) -> np.ndarray:
        """The values by which a partition of that name divides the training rows: a column, or the classes."""
        if column is not None:
            if column not in self.columns:
                known = f"only {', '.join(self.columns)}" if self.columns else "and no others either"
                raise InputError(f"partition_by={column}: domain '{self.name}' has no such column, {known}")
            return self.columns[column]
        if partition in ("dirichlet", "shards") and self.sites is None and not is_class_labels(self.train.y):
            raise InputError(
                f"partition={partition}: the targets of domain '{self.name}' are not classes; use iid, quantity or "
                "sites, or name a column with partition_by"
            )
        return self.train.y.numpy()


def check_domain(
    domain: Domain, shape: Sequence[int], outputs: int, targets: TargetKind, missing_allowed: bool
) -> None:
    """Refuse samples of another shape, targets of another kind, and values that cannot be used."""
    for part, samples in (("train", domain.train), ("test", domain.test)):
        where = f"domain '{domain.name}' {part}"
        if len(samples) == 0:
            raise InputError(f"{where}: has no samples")
        if tuple(samples.x.shape[1:]) != tuple(shape):
            found = "×".join(map(str, samples.x.shape[1:]))
            raise InputError(f"{where}: inputs have shape {found}, expected {'×'.join(map(str, shape))}")
        check_targets(samples.y, targets, outputs, where)
        if isinstance(samples.x, Tensor) and samples.x.is_floating_point():
            check_finite(samples.x, where, missing_allowed)
