"""The plan of a federation: what all sites agree on, read from the app's run config. Needs neither Flower nor torch.

In addition to the settings of a run and the round policy, the plan has

    sites                   permanent names of the sites; the position in the list is the client number
    tasks                   names of the tasks in order; each site maps them to its own folders
    classes, shape, kind    description of the sites' data, which the server never sees

Without `tasks`, the federation is a trial: the benchmark of the settings is partitioned over the sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedspecial.config import RunSettings, Settings, given_object, merge_settings, resolve
from fedspecial.errors import InputError
from fedspecial.flower.governance.policy import RoundPolicy, split_run_config
from fedspecial.flower.governance.site_settings import check_plain_names

KINDS = ("image", "table", "text")
NORM_LIMIT = 10.0
"""Default of `norm_limit`, which is off in simulations: sites are not trusted, simulated clients are."""
MIN_BATCH = 4
"""Default of `min_batch`: BatchNorm over two or three samples makes some honest updates 50 times as large as others."""


@dataclass(frozen=True)
class DataSpec:
    """The classes of the sites' own data, and the shape and kind of one sample."""

    classes: tuple[str, ...]
    shape: tuple[int, ...]
    kind: str = "image"


@dataclass(frozen=True)
class FederationPlan:
    """
    data:    the sites' own data; None for a trial
    removed: sites that left; they keep their client numbers
    """

    sites: tuple[str, ...]
    settings: Settings
    policy: RoundPolicy = field(default_factory=RoundPolicy)
    tasks: tuple[str, ...] = ()
    data: DataSpec | None = None
    removed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.sites:
            raise InputError('sites: no site is given (for example sites="north,south")')
        for key in ("sites", "tasks"):
            names = getattr(self, key)
            check_plain_names(key, names)
            for name in names:
                if names.count(name) > 1:
                    raise InputError(f"{key}: '{name}' is given twice")
        if self.settings.get("clients", len(self.sites)) != len(self.sites):
            raise InputError(f"clients={self.settings['clients']}: there are {len(self.sites)} sites; leave it out")
        if bool(self.tasks) != (self.data is not None):
            raise InputError("tasks, classes, shape: give all three, or none of them for a trial")

    @property
    def absent(self) -> frozenset[int]:
        """The client numbers of the sites that left."""
        return frozenset(map(self.sites.index, self.removed))

    @staticmethod
    def of_run_config(run_config: Mapping[str, Any]) -> FederationPlan:
        policy, settings = split_run_config(run_config)
        sites, tasks, classes, shape = (_names(settings.pop(key, "")) for key in ("sites", "tasks", "classes", "shape"))
        kind = str(settings.pop("kind", "")) or "image"
        if kind not in KINDS:
            raise InputError(f"kind={kind}: expected {', '.join(KINDS)}")
        data = None
        if classes or shape:
            if not all(part.isdigit() and int(part) > 0 for part in shape) or not shape:
                raise InputError(f"shape={','.join(shape)}: expected sizes such as 3,64,64")
            data = DataSpec(classes, tuple(map(int, shape)), kind)
        settings = {key: value for key, value in settings.items() if value != ""}
        return FederationPlan(sites, settings, policy, tasks, data)

    def resolved(self) -> RunSettings:
        """All settings, validated, including the method's own."""
        resolved = resolve(self.merged_settings())
        if resolved.method.simulation_only:
            raise InputError(f"method={resolved.method.name}: a reference method, which runs only in simulation")
        if resolved.config.bank_choice == "task":
            raise InputError("bank_choice=task: a comparison for simulations; predictions do not know the task")
        if resolved.config.simulates_clients:
            raise InputError("latency, availability, drop_rate: only in simulations; real sites have real time")
        config, quorum = resolved.config, self.policy.quorum_size(resolved.config.clients_per_round)
        if self.data is not None and config.stream != "sharp":
            raise InputError(
                f"stream={config.stream}: only for a trial with a benchmark; the sites' own data comes as it comes"
            )
        if quorum < config.required_updates:
            raise InputError(
                f"quorum={self.policy.quorum:g}: a round could end with {quorum} replies, but "
                f"aggregation={config.aggregation} needs {config.required_updates}; give a larger quorum"
            )
        return resolved

    def merged_settings(self) -> Settings:
        # With differential privacy every update is clipped, and refusing one because of the others would cost privacy.
        given: Settings = {
            "norm_limit": 0 if "dp_clip" in self.settings else NORM_LIMIT,
            "min_batch": MIN_BATCH,
            "clients_per_round": len(self.sites) - len(self.removed),
        }
        given |= self.settings
        if self.removed:
            present = len(self.sites) - len(self.removed)
            given["clients_per_round"] = min(int(given["clients_per_round"]), present)
        # A checkpoint after every round, because the sites keep only the client states that match the last few.
        given |= {"clients": len(self.sites), "checkpoint_seconds": 0}
        if self.data is not None:
            given |= {"benchmark": given_object("federation"), "partition": "sites"}
        return merge_settings(given)


def number_of(site: str, sites: Sequence[str]) -> int:
    """The client number of a site."""
    if site not in sites:
        raise InputError(f"site={site}: not a site of this federation (its sites: {', '.join(sites)})")
    return sites.index(site)


def _names(value: object) -> tuple[str, ...]:
    return tuple(part.strip() for part in str(value).split(",") if part.strip())
