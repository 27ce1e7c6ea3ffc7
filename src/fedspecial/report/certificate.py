"""A task's certificate as an event, issued when the task ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedspecial.core.events import CertificateIssued
from fedspecial.theory.certificates.run import certify_task


def issue(events: Sequence[dict[str, Any]], task: int) -> CertificateIssued:
    """From the events so far, so that a resumed run issues what a whole one does.

    Of a task without a server-side anchor (a first one, another method's) nothing is claimed; its rounds are left out.
    """
    certificate = certify_task(events, task)
    rounds = [entry.to_dict() for entry in certificate.rounds] if certificate.anchored else []
    return CertificateIssued(task, certificate.summary(), rounds)
