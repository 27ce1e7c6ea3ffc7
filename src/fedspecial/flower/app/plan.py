"""What a federation agrees on, as it stands in an app's run config. Needs neither Flower nor torch.

Beside the words of a run and the policy of a round:

    sites    lasting names of the sites; a site's place in the list is its number as a client
    tasks    names of the tasks in order; each site says which of its folders that is
    classes, shape, kind    the shape of the sites' own data, which the server never sees

Without `tasks` it is a trial: the benchmark among the words is dealt out to the sites.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedspecial.config import RunSettings, Settings, given_object, merge_settings, resolve
from fedspecial.errors import InputError
from fedspecial.flower.governance.policy import Policy, settle

KINDS = ("image", "table", "text")


@dataclass(frozen=True)
class Shape:
    """What one sample of the sites' own data looks like, and the classes it may have."""

    classes: tuple[str, ...]
    shape: tuple[int, ...]
    kind: str = "image"


@dataclass(frozen=True)
class Plan:
    sites: tuple[str, ...]
    settings: Settings
    policy: Policy = field(default_factory=Policy)
    tasks: tuple[str, ...] = ()
    data: Shape | None = None

    def __post_init__(self) -> None:
        if not self.sites:
            raise InputError('sites: none are named (sites="north,south")')
        for kind in ("sites", "tasks"):
            names = getattr(self, kind)
            for name in names:
                if names.count(name) > 1:
                    raise InputError(f"{kind}: '{name}' is there twice")
        if self.settings.get("clients", len(self.sites)) != len(self.sites):
            raise InputError(f"clients={self.settings['clients']}: but {len(self.sites)} sites are named")
        if bool(self.tasks) != (self.data is not None):
            raise InputError("tasks, classes and shape belong together: give all three, or none for a trial")

    @staticmethod
    def of_run_config(run_config: Mapping[str, Any]) -> Plan:
        policy, settings = settle(run_config)
        sites, tasks, classes, shape = (_names(settings.pop(key, "")) for key in ("sites", "tasks", "classes", "shape"))
        kind = str(settings.pop("kind", "")) or "image"
        if kind not in KINDS:
            raise InputError(f"kind={kind}: expected {', '.join(KINDS)}")
        data = None
        if classes or shape:
            if not all(part.isdigit() and int(part) > 0 for part in shape) or not shape:
                raise InputError(f"shape={','.join(shape)}: expected sizes such as 3,64,64")
            data = Shape(classes, tuple(map(int, shape)), kind)
        return Plan(sites, {key: value for key, value in settings.items() if value != ""}, policy, tasks, data)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def of_json(text: str) -> Plan:
        content = json.loads(text)
        data = content.pop("data")
        shape = Shape(tuple(data["classes"]), tuple(data["shape"]), data["kind"]) if data else None
        names = {key: tuple(content.pop(key)) for key in ("sites", "tasks")}
        return Plan(**names, settings=content["settings"], policy=Policy(**content["policy"]), data=shape)

    def resolved(self) -> RunSettings:
        """All words checked, the method's own included. A checkpoint is written after every round, since sites keep
        their states to match it."""
        return resolve(self.merged_settings())

    def merged_settings(self) -> Settings:
        given = {"clients_per_round": len(self.sites), **self.settings}
        given |= {"clients": len(self.sites), "checkpoint_seconds": 0}
        if self.data is not None:
            given |= {"benchmark": given_object("federation"), "partition": "sites"}
        return merge_settings(given)

    def number(self, site: str) -> int:
        if site not in self.sites:
            raise InputError(f"site={site}: it is not among the sites of the federation ({', '.join(self.sites)})")
        return self.sites.index(site)


def _names(value: object) -> tuple[str, ...]:
    return tuple(part.strip() for part in str(value).split(",") if part.strip())
