"""What was asked of a folder of studies, kept in its studies.yaml, so that a report needs no more than the folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from fedspecial.errors import InputError
from fedspecial.paper.grid import Ask

FILE = "studies.yaml"


def read_asked(folder: Path) -> list[Ask]:
    path = folder / FILE
    if not path.exists():
        raise InputError(f"{folder}: there are no studies here (no {FILE}); begin with fedspecial study NAME")
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
        return [_ask({k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}) for entry in entries]
    except (yaml.YAMLError, TypeError, AttributeError):
        raise InputError(f"{path}: it was cut off or changed; remove it and ask for the studies again") from None


def remember(folder: Path, asks: Iterable[Ask]) -> list[Ask]:
    """Add what is asked now to what was asked before; the same study at the same scale grows."""
    known = {(ask.study, ask.scale): ask for ask in (read_asked(folder) if (folder / FILE).exists() else [])}
    for ask in asks:
        before = known.get((ask.study, ask.scale))
        known[ask.study, ask.scale] = ask if before is None else _joined(before, ask)
    folder.mkdir(parents=True, exist_ok=True)
    plain = [{k: list(v) if isinstance(v, tuple) else v for k, v in asdict(ask).items()} for ask in known.values()]
    part = folder / f".{FILE}.{os.getpid()}"
    part.write_text(yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")
    part.replace(folder / FILE)
    return list(known.values())


def _ask(settings: dict[str, Any]) -> Ask:
    return Ask(**settings)


def _joined(one: Ask, other: Ask) -> Ask:
    def both(a: tuple[str, ...] | None, b: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if a is None or b is None else tuple(dict.fromkeys([*a, *b]))

    return replace(
        one,
        seeds=tuple(dict.fromkeys([*one.seeds, *other.seeds])),
        benchmarks=both(one.benchmarks, other.benchmarks),
        methods=both(one.methods, other.methods),
    )
