"""Other data for a trained model: classes are matched by name; what does not match is refused in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fedspecial.data.benchmark import Benchmark
from fedspecial.data.samples import Domain, Samples
from fedspecial.data.schema import DataSchema, describe_shape
from fedspecial.errors import InputError, did_you_mean


def match(benchmark: Benchmark, schema: DataSchema, model: str) -> Benchmark:
    """The benchmark with the labels of the model's outputs, and normalised as the model's training data was.

    model: what the schema belongs to, for messages
    """
    place, found = f"benchmark '{benchmark.name}'", benchmark.schema
    if (found.input_shape, found.dtype) != (schema.input_shape, schema.dtype):
        here, there = (f"{describe_shape(part.input_shape)} of {part.dtype}" for part in (found, schema))
        raise InputError(f"{place}: its inputs are {here}, but those of {model} are {there}")
    if found.table is not None and schema.table is not None and found.table.columns != schema.table.columns:
        names = [", ".join(column.name for column in part.columns) for part in (found.table, schema.table)]
        raise InputError(f"{place}: its columns are {names[0]}, but {model} has {names[1]}")
    if schema.mean is not None and schema.std is not None:
        benchmark = replace(benchmark, mean=schema.mean, std=schema.std)
    if found.classes is None or schema.classes is None:
        if found.classes != schema.classes:
            kinds = ["no classes" if part.classes is None else "classes" for part in (found, schema)]
            raise InputError(f"{place}: its targets are {kinds[0]}, but {model} has {kinds[1]}")
        return benchmark
    return _with_classes(benchmark, schema.classes, model)


def _with_classes(benchmark: Benchmark, classes: tuple[str, ...], model: str) -> Benchmark:
    if benchmark.classes == classes or _adds_classes(benchmark, classes):
        return benchmark
    numbers = torch.tensor(class_numbers(benchmark.classes, classes, f"benchmark '{benchmark.name}'", model))

    def renumbered(samples: Samples) -> Samples:
        return replace(samples, y=numbers[samples.y])

    def domain_of(domain: Domain) -> Domain:
        return replace(domain, train=renumbered(domain.train), test=renumbered(domain.test))

    return replace(benchmark, classes=classes, domains=tuple(domain_of(domain) for domain in benchmark.domains))


def _adds_classes(benchmark: Benchmark, classes: tuple[str, ...]) -> bool:
    """Whether further domains of a class-incremental run append classes to those that the model has."""
    return benchmark.incremental == "class" and benchmark.classes[: len(classes)] == classes


def class_numbers(names: Sequence[str], classes: Sequence[str], place: str, model: str) -> list[int]:
    """The number of each name among `classes`."""
    for name in names:
        if name not in classes:
            hint = did_you_mean(name, classes)
            shown = ", ".join(classes) if len(classes) <= 20 else f"{', '.join(classes[:20])}, …"
            raise InputError(f"{place}: '{name}' is not a class of {model} ({shown}){hint}")
    return [list(classes).index(name) for name in names]
