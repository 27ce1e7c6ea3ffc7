"""The data of a federation as each side sees it: a site its own, the server none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedspecial.config import Config
from fedspecial.data import catalogue
from fedspecial.data.benchmark import Benchmark, Domain, Samples
from fedspecial.data.federation import Federation
from fedspecial.data.partition import Partition
from fedspecial.errors import InputError
from fedspecial.flower.app.folders import folders_of
from fedspecial.flower.app.plan import Plan, Shape
from fedspecial.runs.build import load_benchmark, make_federation


class _All:
    """A site's partition of its own data: every row is its own."""

    def __init__(self, rows: int) -> None:
        self._rows = np.arange(rows)

    def rows(self, client: int) -> np.ndarray:
        return self._rows


def server_federation(plan: Plan, config: Config) -> Federation:
    """In a trial the benchmark itself, to know what is dealt out; with real sites only the shape of their data."""
    if plan.data is None:
        return make_federation(config, load_benchmark(config))
    nothing = _nothing(plan.data)
    return _federation(plan, plan.data, {name: Domain(name, nothing, nothing) for name in plan.tasks})


def site_federation(plan: Plan, config: Config, site: str, node: Mapping[str, Any]) -> Federation:
    """What a site trains and tests on. In a trial that is its part of every domain's training and test samples."""
    if plan.data is None:
        return _dealt(make_federation(config, load_benchmark(config)), plan.number(site))
    folders = folders_of(plan.tasks, site, node)
    nothing = _nothing(plan.data)
    domains = {
        name: _read(folders[name], name, plan.data, config) if name in folders else Domain(name, nothing, nothing)
        for name in plan.tasks
    }
    return _federation(plan, plan.data, domains)


def _dealt(federation: Federation, client: int) -> Federation:
    """Test samples are shared out among the sites, so that together they test each sample once."""
    own = slice(client, None, federation.clients)
    domains = tuple(replace(d, test=d.test.take(own)) for d in federation.benchmark.domains)
    return Federation(replace(federation.benchmark, domains=domains), federation.clients, federation.partition)


def _federation(plan: Plan, data: Shape, domains: Mapping[str, Domain]) -> Federation:
    kind: Any = data.kind
    benchmark = Benchmark("federation", tuple(domains.values()), data.classes, kind=kind)
    return Federation(benchmark, len(plan.sites), lambda task, domain: _all_rows(domain))


def _all_rows(domain: Domain) -> Partition | _All:
    return _All(len(domain.train))


def _nothing(data: Shape) -> Samples:
    dtype = {"image": torch.uint8, "table": torch.float32, "text": torch.int64}[data.kind]
    return Samples(torch.empty((0, *data.shape), dtype=dtype), torch.empty(0, dtype=torch.int64))


def _read(path: Path, name: str, data: Shape, config: Config) -> Domain:
    domain = _read_arrays(path, name) if path.suffix == ".npz" else _read_images(path, name, data, config)
    for part, samples in (("train", domain.train), ("test", domain.test)):
        where = f"{path}: {part}"
        if tuple(samples.x.shape[1:]) != tuple(data.shape):
            found, wanted = ("×".join(map(str, shape)) for shape in (samples.x.shape[1:], data.shape))
            raise InputError(f"{where}: inputs have shape {found}, the federation's have {wanted}")
        if len(samples) and not 0 <= int(samples.y.min()) <= int(samples.y.max()) < len(data.classes):
            raise InputError(f"{where}: a label is outside 0…{len(data.classes) - 1}")
    return domain


def _read_arrays(path: Path, name: str) -> Domain:
    """x_train, y_train, x_test, y_test; nothing in it is unpickled."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            parts = [torch.from_numpy(arrays[key]) for key in ("x_train", "y_train", "x_test", "y_test")]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: cannot be read as arrays x_train, y_train, x_test, y_test ({error})") from None
    return Domain.of(name, (parts[0], parts[1]), (parts[2], parts[3]))


def _read_images(path: Path, name: str, data: Shape, config: Config) -> Domain:
    """A folder of class folders; a class that the site does not have is simply not there."""
    size = config.image_size or data.shape[-1]
    place, names = path.parent, (path.name,)
    found = catalogue.load(
        "folders", data=place, domains=names, seed=config.seed, image_size=size, on_bad=config.on_bad
    )
    for label in found.classes:
        if label not in data.classes:
            raise InputError(f"{path}: '{label}' is no class of the federation ({', '.join(data.classes)})")
    numbers = torch.tensor([data.classes.index(label) for label in found.classes])
    train, test = (Samples(part.x, numbers[part.y]) for part in (found.domains[0].train, found.domains[0].test))
    return Domain(name, train, test)
