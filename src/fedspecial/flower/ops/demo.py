"""`fedspecial flower demo`: a whole federation on this machine, over TLS with node authentication, and down again.

One SuperLink and four SuperNodes, each a process of its own with a key of its own, learn two tasks of the embedded
benchmark with SPECIAL. What is shown while it runs is read from the files that the server writes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedspecial.flower.governance.audit import Report, verify
from fedspecial.flower.ops import pki
from fedspecial.flower.ops.init import write_app
from fedspecial.flower.ops.processes import Federation, ProcessError

SITES = ("north", "south", "west", "east")
TASKS = ("paper", "neon")
SECONDS = 1200.0  # a machine that is slower than this has stopped

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What the federation came to. `decisions`: why each task's model was published, or was not."""

    run: Path
    matrix: list[list[float | None]]
    decisions: list[str]
    audit: Report
    published: list[Path] = field(default_factory=list)


def demonstrate(folder: Path, rounds: int, say: Say) -> Outcome:
    """From keys to published models; whatever happens, no process is left behind."""
    began = time.monotonic()
    say(f"keys and certificates in {folder / 'keys'}")
    authority = pki.make_authority(folder / "keys")
    identity = pki.make_server_identity(folder / "keys", authority)
    keys = [pki.make_node_key(folder / "keys", site) for site in SITES]
    app = folder / "app"  # Flower would take a folder with the name of its connection for the app
    write_app(app)
    with Federation(folder, tls=identity, environment={"OMP_NUM_THREADS": "1"}) as federation:
        federation.start_superlink()
        say(f"SuperLink at 127.0.0.1:{federation.port}, TLS, registered nodes only")
        for key in keys:
            federation.register(key)
            config = {"site": key.name, "state": str(folder / "sites" / key.name)}
            federation.start_supernode(key.name, key=key, config=config)
        say(f"{len(keys)} SuperNodes started: {', '.join(SITES)}")
        run = folder / "run"
        federation.start_run(app, _words(run, rounds))
        _follow(federation, run, say)
    say(f"everything is down again, after {time.monotonic() - began:.0f} s")
    return _outcome(run)


def _words(run: Path, rounds: int) -> dict[str, Any]:
    more = f"domains={','.join(TASKS)} cap=300 width=8 min_per_client=10 alpha=1.0 client_lr=0.1 eval_every=0"
    settings = {"sites": ",".join(SITES), "rounds": rounds, "more": more, "out": str(run.absolute())}
    # The gate is there to be seen at work; what it lets through is up to the operator.
    return {**settings, "wait_seconds": 120.0, "answer_seconds": 300.0, "max_drop": 0.1, "max_site_drop": 0.2}


def _follow(federation: Federation, run: Path, say: Say) -> None:
    """Show what happens until the run has ended; a process that dies meanwhile is an error with the end of its log."""
    events, told = Tail(run / "events.jsonl"), Tail(federation.log("run"))
    process, deadline = federation.processes["run"], time.monotonic() + SECONDS
    while True:
        ended = process.poll() is not None
        for line in told.lines():
            level, _, text = line.partition(" fedspecial ")[2].partition(" ")
            if level in ("WARNING", "ERROR") or (level == "INFO" and not text.startswith("task")):  # rounds are events
                say(f"  {text}")
        for line in events.lines():
            if text := _shown(json.loads(line)):
                say(text)
        if ended:
            break
        for name in ("superlink", *SITES):
            federation.check(name)
        if time.monotonic() > deadline:
            raise ProcessError(f"the run did not end within {SECONDS:.0f} s:\n{federation.last_lines('run')}")
        time.sleep(0.3)
    if not (run / "finished.json").exists():
        raise ProcessError(f"the run ended before it was finished:\n{federation.last_lines('run', 30)}")


def _shown(event: dict[str, Any]) -> str:
    if event["event"] == "task_started":
        return f"task {event['task']}: {event['name']}"
    if event["event"] == "round":
        asked, loss = len(event["clients"]), event["loss"]
        shown = f", loss {loss:.3f}" if loss is not None else ", the model is held"
        drift = f", {event['drift']:.3f} from the anchor" if event["drift"] is not None else ""
        return (
            f"task {event['task']} round {event['round'] + 1}: {event['num_accepted']} of {asked} sites{shown}{drift}"
        )
    if event["event"] == "task_finished":
        cells = (f"{name} {_percent(value)}" for name, value in zip(TASKS, event["accuracy"], strict=True))
        return f"accuracy after {event['name']}: {', '.join(cells)}"
    return ""


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.1f} %"


def _outcome(run: Path) -> Outcome:
    finished = json.loads((run / "finished.json").read_bytes())
    numbers = range(1, len(TASKS) + 1)
    decisions = [json.loads((run / "promotion" / f"task-{number}.json").read_bytes())["reason"] for number in numbers]
    published = [path for number in numbers if (path := run / "published" / f"task-{number}").exists()]
    return Outcome(run, finished["matrix"], decisions, verify(run / "audit.jsonl", finished["head"]), published)


class Tail:
    """The lines that have been added to a file since it was last looked at; it need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def lines(self) -> Iterator[str]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is being written
                self._at += len(line)
                yield line.decode(errors="replace").rstrip("\n")
