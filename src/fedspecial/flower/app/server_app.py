"""The server's side of the federation: our loop behind a Flower ServerApp.

    app = make_server_app()

What it leaves in the run's folder is what ``fedspecial run`` leaves, and beside it ``audit.jsonl``, the decisions of
the promotion gate and the published models. Started again on the same folder, it goes on after the last finished round.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedspecial.config import resolve
from fedspecial.core.events import Event, read_events
from fedspecial.core.files import write_atomic
from fedspecial.engine import checkpoint as checkpoints
from fedspecial.engine.checkpoint import Checkpoint, Checkpointer
from fedspecial.engine.client import ClientRunner
from fedspecial.engine.loop import Run
from fedspecial.engine.payloads import PayloadTracker
from fedspecial.errors import InputError
from fedspecial.flower.app.engine import FlowerEngine
from fedspecial.flower.app.plan import Plan
from fedspecial.flower.app.recorder import Recorder
from fedspecial.flower.app.site_data import server_federation
from fedspecial.flower.app.tasks import told_to_end
from fedspecial.runs import directory as directory
from fedspecial.runs.build import fixed_threads, prepare, run_remaining, write_result
from fedspecial.runs.provenance import data_sha256

log = logging.getLogger("fedspecial.flower")

Listener = Callable[[Event], None]


def make_server_app(**settings: Any) -> ServerApp:
    """settings: words that stand above those of the run config."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _log_to_stderr()
        try:
            serve(grid, {**context.run_config, **settings})
        except InputError as error:
            log.error("%s", error)  # the one line to read, above Flower's traceback
            raise

    return app


def serve(grid: Grid, run_config: Mapping[str, Any], listeners: tuple[Listener, ...] = ()) -> Path:
    """Run the federation's tasks, or go on with them; returns the folder where everything stands."""
    plan = Plan.of_run_config(run_config)
    resolved = plan.resolved()
    folder = Path(resolved.config.out or "run")
    with _in_place(folder, plan), directory.claimed(folder), fixed_threads(resolved.config.threads):
        name = _name(folder, plan)
        _check_words(folder, resolved.settings())
        if (folder / "finished.json").exists():
            log.info("%s: the run is finished", folder)
            return folder
        federation = server_federation(plan, resolved.config)
        saved = checkpoints.load(folder / "checkpoint")
        data = data_sha256(federation.benchmark)
        if saved is not None and directory.about(folder).get("data_sha256", data) != data:
            raise InputError(f"out={folder}: the data is not that with which the run began (its hash differs)")
        books = Recorder(folder, plan)
        connect = _connection(grid, plan, name, books)
        run = prepare(folder, resolved, federation, None, saved, (books.listen, *listeners), connect)
        with contextlib.closing(run.log):
            run.quorum = lambda: books.engine.needed
            run.ends_early = lambda task, rounds: rounds > 0 and told_to_end(folder) == task
            books.follow(run)
            _gather(books, plan.policy.needed(resolved.config.clients_per_round))
            run_remaining(folder, resolved, run, saved, data)
        _finish(folder, run, books)
    return folder


@contextlib.contextmanager
def _in_place(folder: Path, plan: Plan) -> Iterator[None]:
    """The run's folder; a new one is taken back if the run is refused before the audit log has its first line."""
    new = not (folder / "config.yaml").exists()
    if new:
        directory.create({**plan.merged_settings(), "out": str(folder)})
    try:
        yield
    except InputError:
        log_file = folder / "audit.jsonl"
        if new and not (log_file.exists() and log_file.stat().st_size):
            shutil.rmtree(folder)
        raise


def _gather(books: Recorder, quorum: int) -> None:
    """Wait for all sites; a round may begin without some, but not without a quorum."""
    seconds = books.plan.policy.wait_seconds
    sites = range(len(books.plan.sites))
    here = books.engine.roster.wait(sites, len(sites), seconds)
    if len(here) < quorum:
        raise InputError(f"wait_seconds={seconds:g}: {len(here)} sites came, a round needs {quorum}")


def _connection(
    grid: Grid, plan: Plan, run: str, books: Recorder
) -> Callable[[ClientRunner, Checkpointer, Checkpoint | None], FlowerEngine]:
    def connect(place: ClientRunner, checkpointer: Checkpointer, saved: Checkpoint | None) -> FlowerEngine:
        kept = saved.payloads if saved else {}
        versions = {int(client): version for client, version in kept.get("versions", {}).items()}
        payloads, number = PayloadTracker(kept.get("holders")), kept.get("number", 0)
        books.engine = FlowerEngine(grid, plan, run, place, payloads, versions, number, books.evidence)
        return books.engine

    return connect


def _finish(folder: Path, run: Run, books: Recorder) -> None:
    """result.json where every domain could be tested; in any case what the federation came to."""
    rows = [event["accuracy"] for event in read_events(folder / "events.jsonl") if event["event"] == "task_finished"]
    if not any(value is None for row in rows for value in row):
        write_result(folder, run)
    digest = run.model.layout.digest(run.vector)
    content = {"model_sha256": digest, "matrix": rows, "refusals": dict(books.engine.refusals), "head": books.log.head}
    write_atomic(folder / "finished.json", (json.dumps(content, indent=1) + "\n").encode())


def _name(folder: Path, plan: Plan) -> str:
    """The federation's own name, drawn once. Sites, tasks and classes are numbered by their order, which must stay."""
    path = folder / "federation.json"
    order = {"sites": plan.sites, "tasks": plan.tasks, "classes": plan.data.classes if plan.data else ()}
    if not path.exists():
        if (folder / "events.jsonl").exists():
            raise InputError(f"out={folder}: it holds a run that is not a federation's; name another folder")
        write_atomic(path, json.dumps({"run": secrets.token_hex(8), **order}).encode())
    found = json.loads(path.read_bytes())
    for key, wanted in order.items():
        if tuple(found[key]) != wanted:
            raise InputError(f"out={folder}: it holds a run with {key}={','.join(found[key])}, not {','.join(wanted)}")
    return str(found["run"])


def _check_words(folder: Path, wanted: Mapping[str, Any]) -> None:
    found = resolve(directory.settings(folder)).settings()
    for key, value in wanted.items():
        if key != "out" and found.get(key) != value:
            raise InputError(f"out={folder}: it holds a run with {key}={found.get(key)}, not {key}={value}")


def _log_to_stderr() -> None:
    """Flower sets up its own logger at import and leaves others mute."""
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s fedspecial %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
