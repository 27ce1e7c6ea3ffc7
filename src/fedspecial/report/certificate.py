"""The drift certificate of a task as an event, issued when the task ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedspecial.core.events import CertificateIssued
from fedspecial.theory.certificates.run import certify_task


def issue(events: Sequence[dict[str, Any]], task: int) -> CertificateIssued:
    """Computed from the events so far, so that a resumed run issues the same certificate as an uninterrupted one.

    A task without a server-side anchor (the first task, or another method) has no bound; its rounds are left out.
    """
    certificate = certify_task(events, task)
    rounds = [entry.to_dict() for entry in certificate.rounds] if certificate.anchored else []
    return CertificateIssued(task, certificate.summary(), rounds)
