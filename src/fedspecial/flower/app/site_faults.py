"""Errors at a site: what leaves it is a code and a count; the details stay in the site's own log.

    policy   the server asked for something that the site does not allow
    data     the data of a task cannot be read; the count is the number of samples or files
    state    the client state cannot be read or written
    audit    the server's audit log does not continue the one that this site knows
    failed   any other error

Text of an error may contain file names, labels and values of the data, so it is never sent unless the site's policy
says so (`redact_errors: false`). Only refusals (policy, audit) are sent as text: they quote what the server sent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from fedspecial.errors import InputError
from fedspecial.flower.governance.site_policy import TASK_NOT_ALLOWED, TOO_FEW_SAMPLES
from fedspecial.flower.governance.site_settings import PolicyError, is_plain_name
from fedspecial.flower.logs import one_line

Code = Literal["policy", "data", "state", "audit", "failed"]
LOG_FILE, LONGEST_LINE = "site.log", 4000
_REFUSED = "the site's policy refuses it: "
NOT_TAKING_PART = frozenset({_REFUSED + TASK_NOT_ALLOWED, _REFUSED + TOO_FEW_SAMPLES})
"""Answers of a site that takes no part in a task: it is not asked again in it."""


class SiteError(Exception):
    """An error at a site, with its code and how many items it concerns."""

    def __init__(self, code: Code, detail: str, count: int = 1) -> None:
        super().__init__(detail)
        self.code, self.count = code, count

    def text(self, *, redact: bool) -> str:
        """What the server is told."""
        if self.code in ("policy", "audit"):
            return f"{_REFUSED}{self}"
        details = "the details are in the site's log" if redact else str(self)
        return f"the site failed ({self.code}, count {self.count}): {details}"

    @property
    def may_pass(self) -> bool:
        """Whether repeating the request may help."""
        return self.code != "policy"


@contextmanager
def faults_as(code: Code) -> Iterator[None]:
    """Give every exception of a step this code, except those that have one already."""
    try:
        yield
    except SiteError:
        raise
    except PolicyError as error:
        raise SiteError("policy", str(error)) from None
    except Exception as error:
        if code == "audit" and not isinstance(error, InputError):
            code = "state"  # an error of the disk and no refusal, whose text would be sent
        text = f"{type(error).__name__}: {error}"
        raise SiteError(code, text, getattr(error, "count", 1)) from error


def state_folder(site: str, node_config: Mapping[str, Any]) -> Path:
    """Where the site stores client states, the head of the server's audit log and its own log."""
    return Path(str(node_config.get("state", f"fedspecial-site-{site if is_plain_name(site) else 'unnamed'}")))


def write_to_log(folder: Path, fault: SiteError, about: str) -> None:
    """Append a line to the site's own log, which only its owner can read; a full disk does not hide the fault."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    # The text may quote the server, which is not trusted with the terminal of who reads the log, nor with its length.
    line = one_line(f"{now} {fault.code} count={fault.count} {about}: {fault}", LONGEST_LINE)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder / LOG_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError:
        return
