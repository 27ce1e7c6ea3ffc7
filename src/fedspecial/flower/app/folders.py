"""Which folder of a site is which task. Needs neither Flower nor torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedspecial.errors import InputError


def folders_of(tasks: Sequence[str], site: str, node: Mapping[str, Any]) -> dict[str, Path]:
    """Task name → this site's folder or .npz file: those of the node config's `tasks`, in order and empty where it has
    none, or those with the tasks' own names. A task that has not come yet has none."""
    if "data" not in node:
        raise InputError(f'site={site}: its node config does not say where its data is (data="/path")')
    root = Path(str(node["data"]))
    if not root.is_dir():
        raise InputError(f"site={site}: data={root}: there is no such folder")
    if not node.get("tasks"):
        return {name: path for name in tasks for path in (root / name, root / f"{name}.npz") if path.exists()}
    own = [part.strip() for part in str(node["tasks"]).split(",")]
    if len(own) > len(tasks):
        raise InputError(f"site={site}: tasks={node['tasks']}: the federation has only {len(tasks)} tasks")
    found = {name: root / folder for name, folder in zip(tasks, own, strict=False) if folder}
    for name, path in found.items():
        if not path.exists():
            raise InputError(f"site={site}: task '{name}': {path} does not exist")
    return found
