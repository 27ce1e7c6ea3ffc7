"""`fedspecial flower demo`: a complete federation on this machine, over TLS with node authentication.

One SuperLink and four SuperNodes, each a process with its own key, train on two tasks of the embedded benchmark with
SPECIAL. The progress that is shown is read from the files that the server writes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedspecial.flower.governance.audit import AuditReport, verify
from fedspecial.flower.ops import pki
from fedspecial.flower.ops.new_app import write_app
from fedspecial.flower.ops.processes import LocalFederation, ProcessError

SITES = ("north", "south", "west", "east")
TASKS = ("paper", "neon")
TIMEOUT_SECONDS = 1200.0

Show = Callable[[str], None]


@dataclass(frozen=True)
class DemoResult:
    """decisions: for each task, why its model was or was not published"""

    run: Path
    matrix: list[list[float | None]]
    decisions: list[str]
    audit: AuditReport
    published: list[Path] = field(default_factory=list)


def run_demo(folder: Path, rounds: int, show: Show) -> DemoResult:
    """Create keys, start all processes, run the federation; all processes are stopped, also after an error."""
    started = time.monotonic()
    show(f"created keys and certificates in {folder / 'keys'}")
    authority = pki.make_authority(folder / "keys")
    identity = pki.make_server_identity(folder / "keys", authority)
    keys = [pki.make_node_key(folder / "keys", site) for site in SITES]
    app = folder / "app"  # must not be called "federation": Flower would confuse it with the connection's name
    write_app(app)
    with LocalFederation(folder, tls=identity, environment={"OMP_NUM_THREADS": "1"}) as federation:
        federation.start_superlink()
        show(f"SuperLink started at 127.0.0.1:{federation.port}, with TLS, for registered nodes only")
        for key in keys:
            federation.register(key)
            config = {"site": key.name, "state": str(federation.folder / "sites" / key.name)}
            federation.start_supernode(key.name, key=key, config=config, warm=True)
        show(f"{len(keys)} SuperNodes started: {', '.join(SITES)}")
        run = folder / "run"
        federation.start_run(app, _run_config(run, rounds))
        _show_progress(federation, run, show)
    show(f"all processes stopped after {time.monotonic() - started:.0f} s")
    return _read_result(run)


def _run_config(run: Path, rounds: int) -> dict[str, Any]:
    more = f"domains={','.join(TASKS)} cap=300 width=8 min_per_client=10 alpha=1.0 client_lr=0.1 eval_every=0"
    settings = {"sites": ",".join(SITES), "rounds": rounds, "more": more, "out": str(run.absolute())}
    # Wide limits, so that the demo shows the promotion gate and usually publishes; an operator sets their own.
    return {
        **settings,
        "wait_seconds": 120.0,
        "reply_seconds": 300.0,
        "max_drop": 0.1,
        "max_site_drop": 0.2,
        "on_refused_model": "continue",
    }


def _show_progress(federation: LocalFederation, run: Path, show: Show) -> None:
    """Show events until the run has ended; raises `ProcessError` if another process ends before it."""
    events, log_lines = Tail(run / "events.jsonl"), Tail(federation.log("run"))
    process, deadline = federation.processes["run"], time.monotonic() + TIMEOUT_SECONDS
    while True:
        ended = process.poll() is not None
        for line in log_lines.lines():
            level, _, text = line.partition(" fedspecial ")[2].partition(" ")
            # Log lines about tasks and rounds repeat the events.
            if level in ("WARNING", "ERROR") or (level == "INFO" and not text.startswith("task")):
                show(f"  {text}")
        for line in events.lines():
            if text := _describe(json.loads(line)):
                show(text)
        if ended:
            break
        for name in ("superlink", *SITES):
            federation.check(name)
        if time.monotonic() > deadline:
            raise ProcessError(f"the run did not end within {TIMEOUT_SECONDS:.0f} s:\n{federation.last_lines('run')}")
        time.sleep(0.3)
    if not (run / "finished.json").exists():
        raise ProcessError(f"the run ended before it was finished:\n{federation.last_lines('run', 30)}")


def _describe(event: dict[str, Any]) -> str:
    """One line about an event, or "" for events that are not shown."""
    if event["event"] == "task_started":
        return f"task {event['task']}: {event['name']}"
    if event["event"] == "round":
        sampled, loss = len(event["clients"]), event["loss"]
        result = f", loss {loss:.3f}" if loss is not None else ", no quorum, so the model is unchanged"
        drift = f", distance to the anchor {event['drift']:.3f}" if event["drift"] is not None else ""
        position = f"task {event['task']} round {event['round'] + 1}"
        return f"{position}: {event['num_accepted']} of {sampled} sites{result}{drift}"
    if event["event"] == "task_finished":
        cells = (f"{name} {_percent(value)}" for name, value in zip(TASKS, event["accuracy"], strict=True))
        return f"accuracy after {event['name']}: {', '.join(cells)}"
    return ""


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.1f} %"


def _read_result(run: Path) -> DemoResult:
    finished = json.loads((run / "finished.json").read_bytes())
    tasks = range(1, len(TASKS) + 1)
    decisions = [json.loads((run / "promotion" / f"task-{task}.json").read_bytes())["reason"] for task in tasks]
    published = [path for task in tasks if (path := run / "published" / f"task-{task}").exists()]
    report = verify(run / "audit.jsonl", finished["audit_head"])
    return DemoResult(run, finished["matrix"], decisions, report, published)


class Tail:
    """Reads the lines that were added to a file since the last call; the file may not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def lines(self) -> Iterator[str]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is still being written
                self._offset += len(line)
                yield line.decode(errors="replace").rstrip("\n")
