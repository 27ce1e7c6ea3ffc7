"""The requests of a directory of studies, stored in its studies.yaml, which `fedspecial report` reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from fedspecial.core.files import write_atomic
from fedspecial.errors import InputError
from fedspecial.paper.grid import StudyRequest
from fedspecial.paper.registry import STUDIES

FILE = "studies.yaml"


def read_requests(folder: Path) -> list[StudyRequest]:
    path = folder / FILE
    if not path.exists():
        raise InputError(f"{folder}: not a directory of studies (no {FILE}); start with fedspecial study NAME")
    try:
        entries: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
        return [_request(entry) for entry in entries]
    except (yaml.YAMLError, TypeError, AttributeError):
        raise InputError(f"{path}: damaged or edited; delete it and run fedspecial study again") from None


def _request(entry: dict[str, Any]) -> StudyRequest:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    return StudyRequest(**fields)


def all_studies(request: StudyRequest) -> list[StudyRequest]:
    """The same request for every study that is available at the scale and has one of the requested benchmarks."""
    chosen = request.benchmarks
    found = {
        study.name: tuple(name for name in study.benchmarks.get(request.scale, ()) if chosen is None or name in chosen)
        for study in STUDIES
    }
    return [
        replace(request, study=name, benchmarks=None if chosen is None else benchmarks)
        for name, benchmarks in found.items()
        if benchmarks
    ]


def add_requests(folder: Path, requests: Iterable[StudyRequest]) -> list[StudyRequest]:
    """Add requests to those of the directory; requests for the same study at the same scale are merged."""
    before = read_requests(folder) if (folder / FILE).exists() else []
    known = {(request.study, request.scale): request for request in before}
    for request in requests:
        key = (request.study, request.scale)
        known[key] = _merged(known[key], request) if key in known else request
    folder.mkdir(parents=True, exist_ok=True)
    entries = [
        {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(request).items()} for request in known.values()
    ]
    write_atomic(folder / FILE, yaml.safe_dump(entries, sort_keys=False).encode())
    return list(known.values())


def _merged(one: StudyRequest, other: StudyRequest) -> StudyRequest:
    def both(a: tuple[str, ...] | None, b: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if a is None or b is None else tuple(dict.fromkeys([*a, *b]))

    return replace(
        one,
        seeds=tuple(dict.fromkeys([*one.seeds, *other.seeds])),
        benchmarks=both(one.benchmarks, other.benchmarks),
        methods=both(one.methods, other.methods),
    )
