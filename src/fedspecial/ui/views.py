"""The content of each page, in named parts of JSON text. A part is sent again only when its text has changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedspecial import __version__
from fedspecial.errors import InputError
from fedspecial.ui.files import Problem
from fedspecial.ui.index import RunIndex
from fedspecial.ui.run_files import RunFiles

Parts = dict[str, str]
MAX_COMPARED = 24


@dataclass(frozen=True)
class Content:
    """complete: whether all files were read to their end; otherwise the next look reads further"""

    parts: Parts
    complete: bool = True


def overview(index: RunIndex, runs: Sequence[str]) -> Content:
    """One part per run, so that only the lines that changed are sent."""
    rows = index.rows()
    about = {"folder": str(index.root), "version": __version__, "problems": _json_of(index.notes)}
    return Content({"about": _text(about)} | {f"row/{name}": content for name, content in rows.items()})


def run(index: RunIndex, runs: Sequence[str]) -> Content:
    files, row = _one(index, runs)
    files.poll()
    parts = {
        "row": row,
        "curves": _text(files.curves()),
        "matrix": _text(files.matrix()),
        "results": _text({**files.results(), "counts": files.counts()}),
        "certificates": _text(files.log.certificates),
        "participation": _text(None if files.log.grid is None else files.log.grid.to_json()),
        "metrics": _text({"tasks": files.log.tasks, "lines": files.further_metrics()}),
        "warnings": _text(files.warnings()),
        "settings": _text(files.settings()),
        "commands": _text(files.commands()),
        "files": _text(files.files()),
        "about": _text(files.about()),
    }
    return Content(parts | {"problems": _text(_json_of(files.problems()))}, files.share_read == 1)


def compare(index: RunIndex, runs: Sequence[str]) -> Content:
    if len(runs) > MAX_COMPARED:
        raise InputError(f"{len(runs)} runs are selected; choose at most {MAX_COMPARED}")
    rows, parts, complete = index.rows(), {}, True
    missing = [name for name in runs if name not in rows]
    for name in dict.fromkeys(runs):
        files = index.open(name)
        if files is None or name not in rows:
            continue
        files.poll()
        complete = complete and files.share_read == 1
        content = {
            "row": json.loads(rows[name]),
            "curves": files.curves(),
            "matrix": files.matrix(),
            "results": files.results(),
            "settings": files.settings()["settings"],
            "read": round(files.share_read, 2),
            "problems": _json_of(files.problems()),
        }
        parts[f"run/{name}"] = _text(content)
    return Content(parts | {"missing": _text(missing)}, complete)


def federation(index: RunIndex, runs: Sequence[str]) -> Content:
    """The federations of the folder, and the chosen one; the first one if none is chosen."""
    found = [name for name, content in index.rows().items() if json.loads(content)["federation"]]
    parts = {"federations": _text(found)}
    chosen = list(runs) or found[:1]
    if not chosen:
        return Content(parts)
    files, row = _one(index, chosen)
    files.poll()
    trail = files.audit
    trail.poll()
    decisions, problems = trail.decisions()
    if trail.num_unreadable:
        problems.append(Problem("audit.jsonl", f"lines that cannot be used: {trail.num_unreadable}"))
    counts = {"rounds": trail.num_rounds, "refusals": trail.num_refusals, "starts": list(trail.starts)}
    parts |= {
        "row": row,
        "chain": _text(trail.chain()),
        "sites": _text(trail.site_rows()),
        "rounds": _text(list(trail.rounds)[::-1]),
        "refusals": _text(list(trail.refusals)[::-1]),
        "decisions": _text(decisions),
        "privacy": _text(trail.privacy),
        "counts": _text({**counts, "exists": trail.exists, "read": round(trail.share_read, 2)}),
        "problems": _text(_json_of([*files.problems(), *problems])),
    }
    return Content(parts, files.share_read == trail.share_read == 1)


VIEWS: Mapping[str, Callable[[RunIndex, Sequence[str]], Content]] = {
    "overview": overview,
    "run": run,
    "compare": compare,
    "federation": federation,
}


def _one(index: RunIndex, runs: Sequence[str]) -> tuple[RunFiles, str]:
    """The files of the first of these runs, and its line of the overview, which both may be gone at the next look."""
    name = runs[0] if runs else ""
    files, row = index.open(name), index.rows().get(name)
    if files is None or row is None:
        raise InputError(f"run={name}: there is no such run in {index.root}")
    return files, row


def _json_of(problems: Sequence[Problem]) -> list[dict[str, str]]:
    return [problem.to_json() for problem in problems]


def _text(content: Any) -> str:
    return json.dumps(content, allow_nan=False, default=str)
