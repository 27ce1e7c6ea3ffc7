"""The promotion gate: a model is published only if it is good enough and has not become worse on earlier domains.

On every domain learned so far, over all sites that tested it:

    accuracy ≥ min_accuracy,  accuracy > 1/classes (above_chance),  test samples ≥ min_tested

For every earlier domain, over the sites that tested both models on it:

    drop = accuracy of the reference − accuracy of the candidate        (pooled over sites, and at each site)

The reference is the model at the end of the domain's own task. A domain that no site can test any more is unknown, and
unknown is not a pass. Accuracies are exact fractions of counts, so limits are compared without rounding. No site counts
for more than `max_site_share` of the test samples of a domain, whatever number of samples it reports.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from fedspecial.core.files import write_atomic, write_folder_atomic
from fedspecial.errors import InputError

Status = Literal["kept", "dropped", "unknown"]


@dataclass(frozen=True)
class Count:
    """How many of a site's test samples were classified correctly."""

    correct: int
    total: int

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.total or self.total == 0:
            raise InputError(f"accuracy: {self.correct} of {self.total} is not a valid count of correct predictions")

    @property
    def accuracy(self) -> Fraction:
        return Fraction(self.correct, self.total)


@dataclass(frozen=True)
class Measured:
    """The main metric on a site's test samples, where it is not a share of correct predictions."""

    value: float
    total: int

    @property
    def accuracy(self) -> Fraction:
        return Fraction(self.value)


SiteScore = Count | Measured
Scores = Mapping[str, Mapping[str, SiteScore]]  # domain → site → score


@dataclass(frozen=True)
class PromotionLimits:
    """The largest allowed drop of accuracy on an earlier domain: over all sites, and at the worst site.

    allow_unknown:  publish even if some earlier domain can no longer be tested
    min_accuracy:   least accuracy (or other main metric) on every domain learned so far; 0: no limit
    above_chance:   the accuracy must be above that of guessing among the classes
    min_tested:     fewest test samples of a domain, over all sites
    max_site_share: largest share of a site in the test samples of a domain; larger ones count as this share
    """

    max_drop: float = 0.02
    max_site_drop: float = 0.05
    allow_unknown: bool = False
    min_accuracy: float = 0.0
    above_chance: bool = True
    min_tested: int = 20
    max_site_share: float = 0.6

    def __post_init__(self) -> None:
        for name in ("max_drop", "max_site_drop", "min_accuracy"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name}={getattr(self, name)}: must be between 0 and 1")
        if self.min_tested < 1:
            raise InputError(f"min_tested={self.min_tested}: must be 1 or more")
        if not 0 < self.max_site_share <= 1:
            raise InputError(f"max_site_share={self.max_site_share:g}: must be above 0 and at most 1")


@dataclass(frozen=True)
class DomainVerdict:
    """The comparison on one earlier domain; drops are None if no site tested both models."""

    domain: str
    status: Status
    reason: str
    drop: float | None = None
    worst_site: str | None = None
    worst_site_drop: float | None = None
    untested_sites: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    """by_hand: an operator published the model, although the gate had refused it"""

    publish: bool
    reason: str
    domains: tuple[DomainVerdict, ...]
    limits: PromotionLimits
    by_hand: bool = False

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of_json(content: Mapping[str, Any]) -> Decision:
        domains = tuple(
            DomainVerdict(**{**verdict, "untested_sites": tuple(verdict["untested_sites"])})
            for verdict in content["domains"]
        )
        return Decision(content["publish"], content["reason"], domains, PromotionLimits(**content["limits"]))


def reference_at_own_task(history: Mapping[str, Scores]) -> dict[str, Mapping[str, SiteScore]]:
    """Each domain's scores at the end of its own task. `history`: domain → all scores measured when its task ended."""
    return {domain: scores[domain] for domain, scores in history.items() if domain in scores}


def decide(
    earlier: Sequence[str],
    candidate: Scores,
    reference: Scores,
    limits: PromotionLimits | None = None,
    metric: str = "accuracy",
    *,
    current: str | None = None,
    classes: int = 0,
) -> Decision:
    """Publish if every earlier domain is kept, or unknown where that is allowed, and the model is good enough.

    metric:  the name of the main metric; the limits are on its own scale
    current: the domain of the task that has just ended
    classes: number of classes; 0 if the metric is not a share of correct predictions
    """
    limits = limits or PromotionLimits()
    verdicts = tuple(_judge(d, candidate.get(d, {}), reference.get(d, {}), limits, metric) for d in earlier)
    failed = [v for v in verdicts if v.status == "dropped" or (v.status == "unknown" and not limits.allow_unknown)]
    unknown = [v.domain for v in verdicts if v.status == "unknown"]
    poor = []
    for domain in (*earlier, *([current] if current is not None else [])):
        if domain not in unknown and (problem := _too_poor(candidate.get(domain, {}), limits, metric, classes)):
            poor.append(f"{domain}: {problem}")
    if failed or poor:
        reason = "not published: " + "; ".join([*(f"{v.domain}: {v.reason}" for v in failed), *poor])
    elif unknown:
        reason = f"published, although no site could test {', '.join(unknown)}"
    elif verdicts:
        reason = f"published: {metric} was kept on every earlier domain ({', '.join(v.domain for v in verdicts)})"
    else:
        reason = "published: there is no earlier domain"
    return Decision(not failed and not poor, reason, verdicts, limits)


def _too_poor(scores: Mapping[str, SiteScore], limits: PromotionLimits, metric: str, classes: int) -> str | None:
    """Why the model is not good enough on a domain, whatever it was before."""
    tested = sum(score.total for score in scores.values())
    if tested < limits.min_tested:
        return f"only {tested} test samples over all sites (min_tested={limits.min_tested})"
    value = pooled(scores, limits.max_site_share)
    shown = f"{100 * float(value):.2f} %" if classes else f"{float(value):.4g}"
    if limits.min_accuracy and value < Fraction(str(limits.min_accuracy)):
        return f"{metric} is {shown} (min_accuracy={limits.min_accuracy:g})"
    if limits.above_chance and classes and value <= Fraction(1, classes):
        return f"{metric} is {shown}, no better than guessing one of {classes} classes (above_chance)"
    return None


def _judge(
    domain: str,
    candidate: Mapping[str, SiteScore],
    reference: Mapping[str, SiteScore],
    limits: PromotionLimits,
    metric: str,
) -> DomainVerdict:
    common = sorted(candidate.keys() & reference.keys())
    untested = tuple(sorted(reference.keys() - candidate.keys()))
    if not common:
        reason = f"no site tested it again ({', '.join(untested)} did before)" if untested else "no site has tested it"
        return DomainVerdict(domain, "unknown", reason, untested_sites=untested)
    share = limits.max_site_share
    drop = pooled({s: reference[s] for s in common}, share) - pooled({s: candidate[s] for s in common}, share)
    in_points = all(isinstance(score, Count) for score in candidate.values())
    by_site = {site: reference[site].accuracy - candidate[site].accuracy for site in common}
    worst = max(common, key=lambda site: by_site[site])
    reasons = [
        f"{metric} dropped by {_amount(measured, in_points)} {where} (limit {100 * limit if in_points else limit:g})"
        for where, measured, limit in (
            ("over all sites", drop, limits.max_drop),
            (f"at site {worst}", by_site[worst], limits.max_site_drop),
        )
        if measured > Fraction(str(limit))
    ]
    text = ", ".join(reasons) or (
        f"drop {_amount(drop, in_points)} over all sites, "
        f"{_amount(by_site[worst], in_points).removesuffix(' points')} at the worst site"
    )
    if untested:
        text += f"; not tested again at {', '.join(untested)}"
    status: Status = "dropped" if reasons else "kept"
    return DomainVerdict(domain, status, text, float(drop), worst, float(by_site[worst]), untested)


def _amount(value: Fraction, in_points: bool) -> str:
    return f"{100 * float(value):.2f} points" if in_points else f"{float(value):.4g}"


def pooled(scores: Mapping[str, SiteScore], share: float = 1.0) -> Fraction:
    """The metric over the samples of all these sites; where it is not a count, the mean weighted by samples.

    share: the largest share of one site, see `capped_weights`
    """
    weights = capped_weights({site: score.total for site, score in scores.items()}, share)
    return sum((scores[site].accuracy * weights[site] for site in scores), Fraction(0)) / sum(weights.values())


def capped_weights(totals: Mapping[str, int], share: float) -> dict[str, Fraction]:
    """Test samples of each site as weights, reduced so that no site has more than `share` of their sum.

    The largest m sites all get c = share·R/(1 − m·share), R: the samples of the others. If there are too few sites for
    the share, all count the same.
    """
    limit, names = Fraction(str(share)), sorted(totals, key=lambda site: (-totals[site], site))
    for capped in range(len(names)):
        rest = sum(totals[site] for site in names[capped:])
        if capped == 0:
            if totals[names[0]] <= limit * rest:
                return {site: Fraction(total) for site, total in totals.items()}
            continue
        left = 1 - capped * limit
        if left > 0 and (most := limit * rest / left) >= totals[names[capped]]:
            return {site: min(Fraction(total), most) for site, total in totals.items()}
    return dict.fromkeys(totals, Fraction(1))


def write_decision(path: Path, decision: Decision, extra: Mapping[str, Any] | None = None) -> None:
    """Write the decision and its numbers as JSON; called whether or not the model is published."""
    write_atomic(path, _json({**decision.as_json(), **(extra or {})}))


def publish(
    folder: Path,
    model: bytes,
    *,
    decision: Decision,
    card: str,
    model_sha256: str,
    audit_head: str | None = None,
    audit_key: str | None = None,
) -> Path:
    """Write model.safetensors, README.md and promotion.json in a folder that appears only when all are complete.

    model:        content of the safetensors file
    audit_key:    the public key that signs the audit log
    model_sha256: hash of layout and values, as in a run's result; the hash of the file is added as `file_sha256`
    """
    if not decision.publish:
        raise InputError(f"publish {folder}: {decision.reason}")
    if os.path.lexists(folder):
        raise InputError(f"publish {folder}: the folder exists already; a published model is never replaced")
    file_sha256 = hashlib.sha256(model).hexdigest()
    hashes = {
        "model_sha256": model_sha256,
        "file_sha256": file_sha256,
        "audit_head": audit_head,
        "audit_key": audit_key,
    }
    footer = "\n".join(f"- {name}: `{value}`" for name, value in hashes.items() if value)
    files = {
        "model.safetensors": model,
        "README.md": f"{card.rstrip()}\n\n## Promotion\n\n{decision.reason}\n\n{footer}\n".encode(),
        "promotion.json": _json({**decision.as_json(), **hashes}),
    }
    try:
        write_folder_atomic(folder, files)
    except OSError as error:
        raise InputError(f"publish {folder}: cannot be written ({error.strerror})") from None
    return folder


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
