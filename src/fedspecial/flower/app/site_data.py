"""The data of a federation from both sides: a site sees its own data, the server sees none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedspecial.config import Config, RunSettings
from fedspecial.core.targets import TargetKind
from fedspecial.data import catalogue
from fedspecial.data.benchmark import Benchmark
from fedspecial.data.federation import Federation
from fedspecial.data.samples import Domain, Samples
from fedspecial.data.targets import check_targets, convert
from fedspecial.errors import InputError
from fedspecial.flower.app.plan import DataSpec, FederationPlan
from fedspecial.runs.data import load_benchmark, make_federation, stream_schedule


def server_federation(plan: FederationPlan, resolved: RunSettings) -> Federation:
    """In a trial, the partitioned benchmark; otherwise domains without samples, since the server has no data."""
    if plan.data is None:
        return _trial(resolved)
    empty, targets = _no_samples(plan.data), resolved.objective.targets
    federation = _federation(plan, plan.data, {name: Domain(name, empty, empty) for name in plan.tasks}, targets)
    return _with_schedule(federation, resolved.config)


def site_federation(
    plan: FederationPlan, resolved: RunSettings, site: str, node_config: Mapping[str, Any]
) -> Federation:
    """The data of one site; in a trial, its part of the benchmark's training and test samples."""
    if plan.data is None:
        return _trial_share(_trial(resolved), plan.client_number(site))
    paths = task_paths(plan.tasks, site, node_config)
    empty = _no_samples(plan.data)
    domains = {
        name: _read_domain(paths[name], name, plan.data, resolved) if name in paths else Domain(name, empty, empty)
        for name in plan.tasks
    }
    federation = _federation(plan, plan.data, domains, resolved.objective.targets)
    return _with_schedule(federation, resolved.config)


def _with_schedule(federation: Federation, config: Config) -> Federation:
    return replace(federation, schedule=stream_schedule(config, federation.benchmark))


def _trial(resolved: RunSettings) -> Federation:
    return make_federation(resolved.config, load_benchmark(resolved.config, resolved.objective.targets))


def task_paths(tasks: Sequence[str], site: str, node_config: Mapping[str, Any]) -> dict[str, Path]:
    """Task name → this site's folder or .npz file. Tasks for which the site has no data are left out.

    The node config's `tasks` lists paths in the order of the tasks, empty for a task without data. Without it, a path
    with the name of the task is used if it exists.
    """
    if "data" not in node_config:
        raise InputError(f'site={site}: the node config does not say where the data is (add data="/path")')
    root = Path(str(node_config["data"]))
    if not root.is_dir():
        raise InputError(f"site={site}: data={root}: the folder does not exist")
    if not node_config.get("tasks"):
        return {name: path for name in tasks for path in (root / name, root / f"{name}.npz") if path.exists()}
    listed = [part.strip() for part in str(node_config["tasks"]).split(",")]
    if len(listed) > len(tasks):
        raise InputError(f"site={site}: tasks={node_config['tasks']}: the federation has only {len(tasks)} tasks")
    paths = {name: root / folder for name, folder in zip(tasks, listed, strict=False) if folder}
    for name, path in paths.items():
        if not path.exists():
            raise InputError(f"site={site}: task '{name}': {path} does not exist")
    return paths


class _AllRows:
    """The partition of a site's own data: all rows belong to the site."""

    def __init__(self, rows: int) -> None:
        self._rows = np.arange(rows)

    def rows(self, client: int) -> np.ndarray:
        return self._rows


def _trial_share(federation: Federation, client: int) -> Federation:
    """Test samples are divided among the sites, so that together they test each sample once."""
    own = slice(client, None, federation.clients)
    domains = tuple(replace(d, test=d.test.take(own)) for d in federation.benchmark.domains)
    return replace(federation, benchmark=replace(federation.benchmark, domains=domains))


def _federation(plan: FederationPlan, data: DataSpec, domains: Mapping[str, Domain], targets: TargetKind) -> Federation:
    kind: Any = data.kind
    benchmark = Benchmark("federation", tuple(domains.values()), data.classes, kind=kind, targets=targets)
    return Federation(benchmark, len(plan.sites), lambda task, domain: _AllRows(len(domain.train)))


def _no_samples(data: DataSpec) -> Samples:
    dtype = {"image": torch.uint8, "table": torch.float32, "text": torch.int64}[data.kind]
    return Samples(torch.empty((0, *data.shape), dtype=dtype), torch.empty(0, dtype=torch.int64))


def _read_domain(path: Path, name: str, data: DataSpec, resolved: RunSettings) -> Domain:
    targets = resolved.objective.targets
    if path.suffix == ".npz":
        domain = _read_arrays(path, name, targets)
    elif targets == "classes":
        domain = _read_images(path, name, data, resolved.config)
    else:
        raise InputError(f"{path}: a folder contains classes; objective={resolved.objective.name} needs a .npz file")
    for part, samples in (("train", domain.train), ("test", domain.test)):
        if tuple(samples.x.shape[1:]) != tuple(data.shape):
            found, wanted = ("×".join(map(str, shape)) for shape in (samples.x.shape[1:], data.shape))
            raise InputError(f"{path}: {part}: samples have shape {found}, the federation uses {wanted}")
        if len(samples):
            check_targets(samples.y, targets, len(data.classes), f"{path}: {part}")
    return domain


def _read_arrays(path: Path, name: str, targets: TargetKind) -> Domain:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            parts = [torch.from_numpy(arrays[key]) for key in ("x_train", "y_train", "x_test", "y_test")]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: cannot read the arrays x_train, y_train, x_test, y_test ({error})") from None
    return Domain.of(name, (parts[0], convert(parts[1], targets)), (parts[2], convert(parts[3], targets)))


def _read_images(path: Path, name: str, data: DataSpec, config: Config) -> Domain:
    """A folder with one subfolder per class; classes that the site does not have may be absent."""
    size = config.image_size or data.shape[-1]
    found = catalogue.load(
        "folders", data=path.parent, domains=(path.name,), seed=config.seed, image_size=size, on_bad=config.on_bad
    )
    for label in found.classes:
        if label not in data.classes:
            raise InputError(f"{path}: '{label}' is not a class of the federation ({', '.join(data.classes)})")
    numbers = torch.tensor([data.classes.index(label) for label in found.classes])
    train, test = (Samples(part.x, numbers[part.y]) for part in (found.domains[0].train, found.domains[0].test))
    return Domain(name, train, test)
