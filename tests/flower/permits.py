"""Sites whose training begins when a test gives them a permit, so that real processes need no timing."""

from __future__ import annotations

import itertools
from pathlib import Path

from fedspecial.flower.ops.processes import LocalFederation

CLIENT_APP = '''
"""The app of a site, whose training waits for a file in the folder that the node config names."""

import time
from pathlib import Path

from fedspecial.flower import make_client_app


def wait_for_permit(message, context, call_next):
    folder = Path(context.node_config["permits"])
    (folder / "waits").touch()
    while not (found := sorted(folder.glob("permit-*"))):
        time.sleep(0.05)
    found[0].unlink()
    return call_next(message, context)


app = make_client_app(mods=[wait_for_permit])
'''


def folder_of(federation: LocalFederation, site: str) -> Path:
    return federation.folder / "permits" / site


def permit(federation: LocalFederation, site: str, trainings: int = 1) -> None:
    """Let a site train so often."""
    for _ in range(trainings):
        (folder_of(federation, site) / f"permit-{next(_numbers):06d}").touch()


def wait_until_asked(federation: LocalFederation, site: str) -> None:
    """Wait until the site is at work, and forget that it was."""
    mark = folder_of(federation, site) / "waits"
    federation.wait(mark.exists, "run", f"{site} was not asked to train", 240)
    mark.unlink()


_numbers = itertools.count()
