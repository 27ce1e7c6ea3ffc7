"""The promotion gate: a model is published only if nothing learned before was lost.

For every earlier domain, over the sites that tested both models on it:

    drop = accuracy of the reference − accuracy of the candidate        (pooled over sites, and at each site)

The reference is the model that ended the domain's own task, or the best one since. A domain that no site can test any
more is unknown, which is not passed. Accuracies are counts, so limits are met exactly, not to the last bit of a float.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from fedspecial.core.files import sync_file, write_atomic
from fedspecial.errors import InputError

Status = Literal["kept", "lost", "unknown"]


@dataclass(frozen=True)
class Count:
    """How many of a site's test samples were classified rightly."""

    correct: int
    total: int

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.total or self.total == 0:
            raise InputError(f"accuracy: {self.correct} of {self.total} is not a count of right answers")

    @property
    def accuracy(self) -> Fraction:
        return Fraction(self.correct, self.total)


Scores = Mapping[str, Mapping[str, Count]]  # domain → site → count


@dataclass(frozen=True)
class Limits:
    """The most that an earlier domain may lose: over all sites, and at the worst one (fractions of 1)."""

    max_drop: float = 0.02
    max_site_drop: float = 0.05
    allow_unknown: bool = False

    def __post_init__(self) -> None:
        for name in ("max_drop", "max_site_drop"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name}={getattr(self, name)}: must be between 0 and 1")


@dataclass(frozen=True)
class DomainVerdict:
    """What became of one earlier domain; drops are None where nothing could be compared."""

    domain: str
    status: Status
    reason: str
    drop: float | None = None
    worst_site: str | None = None
    worst_site_drop: float | None = None
    untested_sites: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    publish: bool
    reason: str
    domains: tuple[DomainVerdict, ...]
    limits: Limits

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def reference_at_own_task(history: Mapping[str, Scores]) -> dict[str, Mapping[str, Count]]:
    """history: domain → what was measured when its task ended. Each domain's scores at its own end."""
    return {domain: scores[domain] for domain, scores in history.items() if domain in scores}


def reference_best(history: Mapping[str, Scores]) -> dict[str, dict[str, Count]]:
    """For each domain and site the best that was ever measured there."""
    best: dict[str, dict[str, Count]] = {}
    for scores in history.values():
        for domain, sites in scores.items():
            for site, count in sites.items():
                known = best.setdefault(domain, {}).get(site)
                if known is None or count.accuracy > known.accuracy:
                    best[domain][site] = count
    return best


def decide(earlier: Sequence[str], candidate: Scores, reference: Scores, limits: Limits | None = None) -> Decision:
    """Judge every earlier domain; publish if each is kept (or unknown, where that is allowed)."""
    limits = limits or Limits()
    verdicts = tuple(_judge(d, candidate.get(d, {}), reference.get(d, {}), limits) for d in earlier)
    against = [v for v in verdicts if v.status == "lost" or (v.status == "unknown" and not limits.allow_unknown)]
    unknown = [v.domain for v in verdicts if v.status == "unknown"]
    if against:
        reason = "not published: " + "; ".join(f"{v.domain}: {v.reason}" for v in against)
    elif unknown:
        reason = f"published, though nobody could test {', '.join(unknown)}"
    elif verdicts:
        reason = f"published: every earlier domain was kept ({', '.join(v.domain for v in verdicts)})"
    else:
        reason = "published: there is no earlier domain"
    return Decision(not against, reason, verdicts, limits)


def _judge(
    domain: str, candidate: Mapping[str, Count], reference: Mapping[str, Count], limits: Limits
) -> DomainVerdict:
    common = sorted(candidate.keys() & reference.keys())
    untested = tuple(sorted(reference.keys() - candidate.keys()))
    if not common:
        who = f"no site tested it again ({', '.join(untested)} did before)" if untested else "no site has tested it"
        return DomainVerdict(domain, "unknown", who, untested_sites=untested)
    drop = _pooled(reference, common) - _pooled(candidate, common)
    by_site = {site: reference[site].accuracy - candidate[site].accuracy for site in common}
    worst = max(common, key=lambda site: by_site[site])
    reasons = [
        f"{where} lost {100 * float(lost):.2f} points, {100 * limit:g} are allowed"
        for where, lost, limit in (
            ("all sites together", drop, limits.max_drop),
            (f"site {worst}", by_site[worst], limits.max_site_drop),
        )
        if lost > Fraction(str(limit))
    ]
    text = ", ".join(reasons) or f"lost {100 * float(drop):.2f} points, at most {100 * float(by_site[worst]):.2f}"
    if untested:
        text += f"; not tested again at {', '.join(untested)}"
    status: Status = "lost" if reasons else "kept"
    return DomainVerdict(domain, status, text, float(drop), worst, float(by_site[worst]), untested)


def _pooled(scores: Mapping[str, Count], sites: Sequence[str]) -> Fraction:
    return Fraction(sum(scores[s].correct for s in sites), sum(scores[s].total for s in sites))


def write_decision(path: Path, decision: Decision, about: Mapping[str, Any] | None = None) -> None:
    """The decision and its numbers as JSON, whole or not at all; also when nothing is published."""
    write_atomic(path, _json({**decision.as_json(), **(about or {})}))


def publish(
    folder: Path, model: bytes, *, decision: Decision, card: str, model_sha256: str, audit_head: str | None = None
) -> Path:
    """model.safetensors, README.md and promotion.json, in a folder that appears whole or not at all.

    model:        the file, in safetensors form
    model_sha256: hash of layout and values, as a run's result has it; the file's own hash is written beside it
    """
    if not decision.publish:
        raise InputError(f"publish {folder}: {decision.reason}")
    if os.path.lexists(folder):
        raise InputError(f"publish {folder}: it exists already; a published model is never replaced")
    hashes = {"model_sha256": model_sha256, "file_sha256": hashlib.sha256(model).hexdigest(), "audit_head": audit_head}
    footer = "\n".join(f"- {name}: `{value}`" for name, value in hashes.items() if value)
    files = {
        "model.safetensors": model,
        "README.md": f"{card.rstrip()}\n\n## Promotion\n\n{decision.reason}\n\n{footer}\n".encode(),
        "promotion.json": _json({**decision.as_json(), **hashes}),
    }
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        for name, data in files.items():
            write_atomic(part / name, data)
        part.rename(folder)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise InputError(f"publish {folder}: cannot be written ({error.strerror})") from None
    sync_file(folder.parent)
    return folder


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
