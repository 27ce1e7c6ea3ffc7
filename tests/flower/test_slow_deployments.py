"""Real processes: sites that are slow, hang, or die during their upload."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from deployments import add_site, deployed, start_site, submit, wait_for_end
from fleet_proxy import Uploads, fleet_proxy
from flower_fixtures import finished, reasons_of, rounds_of
from permits import permit, wait_until_asked

from fedspecial.core.events import of_kind, read_events
from fedspecial.flower.governance.audit import read_lines, verify
from fedspecial.flower.ops.processes import LocalFederation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc"),
]
SITES = ("north", "south", "west")
ONE_TASK = {"domains": "paper"}


def audited(run: Path, event: str) -> list[dict[str, Any]]:
    return [line for line in read_lines(run / "audit.jsonl") if line["event"] == event]


def wait_for_steps(federation: LocalFederation, run: Path, steps: int) -> None:
    def made() -> bool:
        events = read_events(run / "events.jsonl") if (run / "events.jsonl").exists() else []
        return sum(len(event["updates"]) for event in of_kind(events, "server_step")) >= steps

    federation.wait(made, "run", f"there are no {steps} server steps", 300)


def restart(federation: LocalFederation, site: str) -> None:
    """Start a killed site again until the SuperLink accepts it, as systemd does; until then it says code 2004."""
    log, connected = federation.log("run"), f"site {site} connected"
    before = log.read_text().count(connected)
    limit = time.monotonic() + 400
    while log.read_text().count(connected) == before:
        if site not in federation.processes:
            start_site(federation, site, warm=True)
        elif federation.processes[site].poll() is not None:
            assert "[code: 2004]" in federation.last_lines(site, 40)
            federation.stop(site)
        assert time.monotonic() < limit, federation.last_lines(site, 40)
        time.sleep(1)


def test_a_slow_site_and_one_that_dies_during_its_upload_hold_nobody_up(tmp_path: Path) -> None:
    """Asynchronous, a step per update. South is slow: it works on version 0 until the others have made eight steps.
    West is killed during the upload of its first update, starts again, and contributes."""
    uploads = Uploads()
    with deployed(tmp_path, SITES[:2], with_permits=True) as federation:
        assert federation.tls is not None
        with fleet_proxy(federation.tls, federation.port, uploads=uploads) as port:
            add_site(federation, "west", warm=True, proxy_port=port)
            more = {**ONE_TASK, "mode": "async", "buffer": 1}
            run = submit(federation, SITES, more, rounds=4, reply_seconds=3600.0)
            for site in SITES:
                wait_until_asked(federation, site)
            permit(federation, "north", 2)
            wait_for_steps(federation, run, 2)
            uploads.stop.set()
            permit(federation, "west")
            federation.wait(uploads.stopped.is_set, "run", "west uploads nothing", 240)
            permit(federation, "north", 3)
            wait_for_steps(federation, run, 5)
            federation.stop("west", signal_number=signal.SIGKILL)
            uploads.end.set()
            restart(federation, "west")
            permit(federation, "north")  # west is asked again after the next step
            wait_for_steps(federation, run, 6)
            wait_until_asked(federation, "west")
            permit(federation, "west", 2)
            wait_for_steps(federation, run, 8)
            permit(federation, "south")
            wait_for_steps(federation, run, 9)
            for site in SITES:
                permit(federation, site, 12)
            wait_for_end(federation, run)
    used = [
        (update["site"], update["version"], update["staleness"])
        for line in audited(run, "server_step")
        for update in line["updates"]
    ]
    assert len(used) == 12
    assert used[:5] == [("north", version, 0) for version in range(5)]
    assert ("south", 0, 8) in used
    lost = [(line["site"], line["version"]) for line in audited(run, "update_lost")]
    assert ("west", 0) in lost
    assert {version for site, version, _ in used if site == "west"} >= {6}
    assert verify(run / "audit.jsonl", finished(run)["audit_head"]).intact


def test_a_hanging_site_costs_a_round_its_grace_time(tmp_path: Path) -> None:
    """The run ends, although its deadline for replies is longer than any time-out of this test."""
    with deployed(tmp_path, SITES, with_permits=True) as federation:
        for site in ("north", "west"):
            permit(federation, site, 10)
        policy = {"quorum": 0.6, "reply_seconds": 36000.0, "grace_seconds": 2.0}
        run = submit(federation, SITES, ONE_TASK, **policy)
        wait_for_end(federation, run)
    assert [[update["site"] for update in line["updates"]] for line in rounds_of(run)] == [["north", "west"]] * 2
    assert {line["outcome"] for line in rounds_of(run)} == {"completed"}
    assert reasons_of(run)["south"] == {
        "no reply before the deadline",
        "the site is still at work on an earlier round",
    }
