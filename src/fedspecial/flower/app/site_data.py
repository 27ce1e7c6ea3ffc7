"""The data of a federation from both sides: a site sees its own data, the server sees none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from fedspecial.data.formats import image_folders
from fedspecial.data.loading.bad_rows import OnBad
from fedspecial.data.samples import Domain, Samples
from fedspecial.data.targets import check_targets, convert
from fedspecial.errors import InputError
from fedspecial.flower.app.plan import DataSpec, FederationPlan
from fedspecial.flower.app.site_faults import faults_as
from fedspecial.flower.app.site_plan import SitePlan
from fedspecial.flower.governance.site_policy import SitePolicy
from fedspecial.flower.governance.site_settings import PolicyError
from fedspecial.runs.data import load_benchmark, make_federation, stream_schedule


def server_federation(plan: FederationPlan, resolved: RunSettings) -> Federation:
    """In a trial, the partitioned benchmark; otherwise domains without samples, since the server has no data."""
    if plan.data is None:
        return _trial(resolved)
    empty, targets = _no_samples(plan.data), resolved.objective.targets
    domains = {name: Domain(name, empty, empty) for name in plan.tasks}
    return _with_schedule(_federation(len(plan.sites), plan.data, domains, targets), resolved.config)


class SiteData:
    """The data of one site. A task is read when it is needed and not before, so a bad file of one task harms no other.

    In a trial, it is the site's part of the benchmark's training and test samples.
    """

    def __init__(
        self, plan: SitePlan, resolved: RunSettings, site: str, policy: SitePolicy, node_config: Mapping[str, Any]
    ) -> None:
        self._plan, self._resolved, self._policy = plan, resolved, policy
        self._domains: dict[str, Domain] = {}
        if plan.data is None:
            self.federation = _trial_share(_trial(resolved), plan.client_number(site))
        else:
            self._paths = task_paths(plan.tasks, site, policy, node_config)
            self._update(plan.data)

    def read(self, task: int) -> None:
        """Make sure that `federation` has the data of this task; raises `SiteError`."""
        if not 1 <= task <= self.federation.num_tasks:
            raise PolicyError(f"task {task}: the federation has {self.federation.num_tasks} tasks")
        if self._plan.data is None:
            return
        name = self._plan.tasks[task - 1]
        self._policy.check_task(name)
        if name in self._paths and name not in self._domains:
            with faults_as("data"):
                self._domains[name] = _read_domain(self._paths[name], name, self._plan.data, self._resolved)
            self._update(self._plan.data)

    def _update(self, data: DataSpec) -> None:
        empty = _no_samples(data)
        domains = {name: self._domains.get(name, Domain(name, empty, empty)) for name in self._plan.tasks}
        targets = self._resolved.objective.targets
        federation = _federation(len(self._plan.sites), data, domains, targets)
        self.federation = _with_schedule(federation, self._resolved.config)


def _with_schedule(federation: Federation, config: Config) -> Federation:
    return replace(federation, schedule=stream_schedule(config, federation.benchmark))


def _trial(resolved: RunSettings) -> Federation:
    return make_federation(resolved.config, load_benchmark(resolved.config, resolved.objective.targets))


def task_paths(tasks: Sequence[str], site: str, policy: SitePolicy, node_config: Mapping[str, Any]) -> dict[str, Path]:
    """Task name → this site's folder or .npz file. Tasks for which the site has no data are left out.

    The policy's `tasks` names the paths of the allowed tasks; the node config's `tasks` lists paths in the order of the
    tasks, empty for a task without data. Without both, a path with the name of the task is used if it exists.
    """
    if policy.data is None:
        raise InputError(f'site={site}: the node config does not say where the data is (add data="/path")')
    root = Path(policy.data)
    if not root.is_dir():
        raise InputError(f"site={site}: data={root}: the folder does not exist")
    if policy.tasks is not None:
        named = {name: folder for name, folder in policy.tasks.items() if name in tasks}
    elif node_config.get("tasks"):
        listed = [part.strip() for part in str(node_config["tasks"]).split(",")]
        if len(listed) > len(tasks):
            raise InputError(f"site={site}: tasks={node_config['tasks']}: the federation has only {len(tasks)} tasks")
        named = {name: folder for name, folder in zip(tasks, listed, strict=False) if folder}
    else:
        return {name: path for name in tasks for path in (root / name, root / f"{name}.npz") if path.exists()}
    for name, folder in named.items():
        if Path(folder).is_absolute() or ".." in Path(folder).parts:
            raise InputError(f"site={site}: task '{name}': {folder} is not in data={root}")
        if not (root / folder).exists():
            raise InputError(f"site={site}: task '{name}': {root / folder} does not exist")
    return {name: root / folder for name, folder in named.items()}


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


def _federation(clients: int, data: DataSpec, domains: Mapping[str, Domain], targets: TargetKind) -> Federation:
    kind: Any = data.kind
    benchmark = Benchmark("federation", tuple(domains.values()), data.classes, kind=kind, targets=targets)
    return Federation(benchmark, clients, lambda task, domain: _AllRows(len(domain.train)))


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


class UnreadableSamplesError(InputError):
    """count: how many samples of the folder cannot be read"""

    def __init__(self, message: str, count: int) -> None:
        super().__init__(message)
        self.count = count


def _read_images(path: Path, name: str, data: DataSpec, config: Config) -> Domain:
    """A folder with one subfolder per class; classes that the site does not have may be absent."""
    size = config.image_size or data.shape[-1]

    def load(on_bad: OnBad) -> Benchmark:
        return catalogue.load(
            "folders", data=path.parent, domains=(path.name,), seed=config.seed, image_size=size, on_bad=on_bad
        )

    try:
        found = load(config.on_bad)
    except InputError as error:
        raise UnreadableSamplesError(str(error), _count_unreadable(path, load)) from None
    for label in found.classes:
        if label not in data.classes:
            raise InputError(f"{path}: '{label}' is not a class of the federation ({', '.join(data.classes)})")
    numbers = torch.tensor([data.classes.index(label) for label in found.classes])
    train, test = (Samples(part.x, numbers[part.y]) for part in (found.domains[0].train, found.domains[0].test))
    return Domain(name, train, test)


def _count_unreadable(path: Path, load: Callable[[OnBad], Benchmark]) -> int:
    """How many images of a folder cannot be read; 1 if the folder as a whole cannot."""
    try:
        (domain,) = load("skip").domains
        files = sum(len(image_folders.images(path / label)) for label in image_folders.subfolders(path))
    except (InputError, OSError):
        return 1
    return max(1, files - len(domain.train) - len(domain.test))
