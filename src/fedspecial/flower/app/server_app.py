"""The server's side of the federation: the training loop of fedspecial as a Flower ServerApp.

    app = make_server_app()

The run directory contains the files of ``fedspecial run`` and, in addition, ``audit.jsonl``, the promotion decisions
and the published models. A run that is started again with the same directory continues after the last finished round.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedspecial.config import Settings, resolve
from fedspecial.core.events import Event, read_events
from fedspecial.core.files import owner_only, write_atomic
from fedspecial.engine import checkpoint as checkpoints
from fedspecial.engine.aggregation.privacy import private_aggregation
from fedspecial.engine.checkpoint import Checkpoint, Checkpointer
from fedspecial.engine.clients.client import ClientRunner
from fedspecial.engine.clients.payloads import PayloadTracker
from fedspecial.engine.run import Run
from fedspecial.errors import InputError
from fedspecial.flower.app.async_work import FlowerWork
from fedspecial.flower.app.cards import federation_origin
from fedspecial.flower.app.engine import FlowerEngine
from fedspecial.flower.app.membership import FILE as MEMBERS_FILE
from fedspecial.flower.app.membership import Membership, MembershipChangedError, apply_changes, check_unchanged
from fedspecial.flower.app.plan import FederationPlan
from fedspecial.flower.app.recorder import Recorder
from fedspecial.flower.app.site_data import server_federation
from fedspecial.flower.app.site_plan import plan_for_sites
from fedspecial.flower.app.task_control import requested_task_end
from fedspecial.flower.app.threaded_grid import ThreadedGrid
from fedspecial.flower.app.watched_grid import FILE as SITES_FILE
from fedspecial.flower.app.watched_grid import WatchedGrid
from fedspecial.flower.governance.audit import AuditLog, read_lines
from fedspecial.flower.governance.policy import split_run_config
from fedspecial.flower.governance.signing import open_signer
from fedspecial.flower.governance.site_keys import SiteKeys
from fedspecial.flower.logs import log_to_stderr
from fedspecial.runs import directory
from fedspecial.runs.build import prepare
from fedspecial.runs.devices import torch_settings
from fedspecial.runs.execute import run_remaining, write_result
from fedspecial.runs.provenance import domain_hashes

log = logging.getLogger("fedspecial.flower")

Listener = Callable[[Event], None]


def make_server_app(**settings: Any) -> ServerApp:
    """settings: override the run config"""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        log_to_stderr()
        try:
            config = {**context.run_config, **settings}
            policy, _ = split_run_config(config)
            serve(ThreadedGrid(grid, max_bytes=policy.max_reply_megabytes * 1e6), config)
        except InputError as error:
            log.error("%s", error)  # one readable line above Flower's traceback
            raise

    return app


def serve(grid: Grid, run_config: Mapping[str, Any], listeners: tuple[Listener, ...] = ()) -> Path:
    """Run all tasks of the federation, or the remaining ones; returns the run directory."""
    plan = FederationPlan.of_run_config(run_config)
    resolved = plan.resolved()
    folder = Path(resolved.config.out or "run")
    with owner_only():
        new = _create_directory(folder, plan)
        with (
            directory.claimed(folder),
            _removed_if_refused(folder, new=new),
            directory.failure_recorded(folder),
            directory.full_disk_refused(folder, "start the run again"),
            torch_settings(resolved.config),
        ):
            while not _serve_members(grid, folder, plan, listeners):
                log.info("%s: sites or tasks change; the run goes on from its checkpoint", folder)
    return folder


def _serve_members(grid: Grid, folder: Path, plan: FederationPlan, listeners: tuple[Listener, ...]) -> bool:
    """Run what is left with the sites and tasks as they are now; False if they are to be changed before it ends."""
    members = _open_federation(folder, plan)
    started_with, plan = plan.sites, members.apply(plan, folder)
    # A rollback may have removed sites again, so that the settings were recorded with more clients.
    recorded = directory.settings(folder).get("clients")
    changed = plan.sites != started_with or bool(plan.removed) or bool(plan.tasks and recorded != len(plan.sites))
    resolved = plan.resolved()
    _check_settings(folder, resolved.flat(), may_differ=("clients", "clients_per_round") if changed else ())
    if _is_finished(folder, plan):
        log.info("%s: the run is finished", folder)
        return True
    federation = replace(server_federation(plan, resolved), absent=plan.absent)
    saved = checkpoints.load(folder / "checkpoint")
    data = domain_hashes(federation.benchmark)
    if saved is not None:
        _record_members(folder, resolved.flat(), data)
    recorder = Recorder(folder, plan, members.run, saved.payloads.get("audit_head", "") if saved else "")
    keys = SiteKeys(folder, plan.sites, recorder.append)
    watched = WatchedGrid(grid, folder / SITES_FILE, plan.sites, keys.admit)
    connect = _make_connect(watched, plan, plan_for_sites(plan, resolved), members.run, recorder)
    run = prepare(folder, resolved, federation, None, saved, (recorder.listen, *listeners), connect)

    def ends_early(task: int, rounds: int) -> bool:
        check_unchanged(folder)
        return rounds > 0 and requested_task_end(folder) == task

    try:
        with contextlib.closing(run.log), contextlib.closing(watched):
            run.quorum, run.ends_early = lambda: recorder.engine.quorum_size, ends_early
            if run.config.asynchronous:
                answered = saved.work.get("answered", 0) if saved else 0
                run.work = FlowerWork(recorder.engine, answered)
            # The audit log has all releases, also those of rounds that were repeated; a resume cuts the event log.
            charged, present = read_lines(recorder.audit_log.path), len(federation.present)
            run.private = private_aggregation(run.config, federation.num_tasks, present, charged, real=True)
            watched.nodes = lambda: recorder.engine.registry.nodes
            recorder.attach(run)
            _wait_for_sites(recorder.engine, plan.policy.quorum_size(resolved.config.clients_per_round))
            run_remaining(folder, resolved, run, saved, data)
        check_unchanged(folder)
    except MembershipChangedError:
        return False
    _write_finished(folder, run, recorder)
    return True


def _is_finished(folder: Path, plan: FederationPlan) -> bool:
    """Whether all tasks were learned; a task that was added later makes a finished run unfinished."""
    path = folder / "finished.json"
    if not path.exists():
        return False
    if not plan.tasks or len(json.loads(path.read_bytes())["matrix"]) == len(plan.tasks):
        return True
    path.unlink()
    (folder / "result.json").unlink(missing_ok=True)
    return False


def _record_members(folder: Path, settings: Settings, data: dict[str, str]) -> None:
    """Write the settings and the hashes of the tasks again, after sites or tasks were added."""
    about = directory.about(folder)
    known = about.get("data", data)
    if list(data.items())[: len(known)] != list(known.items()):
        raise InputError(f"out={folder}: the data has changed since the run started (its hash differs)")
    kept = {key: value for key, value in about.items() if key not in ("format", "data_sha256")}
    directory.write_settings(folder, settings, {**kept, "data": data})


def _create_directory(folder: Path, plan: FederationPlan) -> bool:
    """Whether the run directory was created; it may be there already."""
    if (folder / "config.yaml").exists():
        return False
    directory.create({**plan.merged_settings(), "out": str(folder)})
    return True


@contextlib.contextmanager
def _removed_if_refused(folder: Path, *, new: bool) -> Iterator[None]:
    """Remove a new run directory if the run is refused before the audit log has a line. The caller has claimed it:
    another server, which may have claimed it first, keeps it."""
    try:
        yield
    except InputError:
        audit_log = folder / "audit.jsonl"
        if new and not (audit_log.exists() and audit_log.stat().st_size):
            shutil.rmtree(folder)
        raise


def _wait_for_sites(engine: FlowerEngine, quorum: int) -> None:
    """Wait for all sites; start without the missing ones if the others are a quorum."""
    seconds, sites = engine.plan.policy.wait_seconds, engine.runner.federation.present
    connected = engine.registry.wait(sites, len(sites), seconds)
    if len(connected) < quorum:
        raise InputError(f"wait_seconds={seconds:g}: only {len(connected)} sites connected, a round needs {quorum}")


def _make_connect(
    grid: Grid, plan: FederationPlan, plan_json: str, run_id: str, recorder: Recorder
) -> Callable[[ClientRunner, Checkpointer, Checkpoint | None], FlowerEngine]:
    def connect(runner: ClientRunner, checkpointer: Checkpointer, saved: Checkpoint | None) -> FlowerEngine:
        checkpointer.keep = plan.policy.keep_checkpoints
        kept = saved.payloads if saved else {}
        versions = _versions(kept)
        earlier = [_versions(found.payloads) for found in checkpoints.kept(checkpointer.folder)]
        payloads, num_requests = PayloadTracker(kept.get("holders")), kept.get("num_requests", 0)
        recorder.engine = FlowerEngine(
            *(grid, plan, plan_json, run_id, runner, payloads, versions, num_requests, earlier, recorder.collector)
        )
        return recorder.engine

    return connect


def _versions(payloads: Mapping[str, Any]) -> dict[int, str]:
    """Client → version of its client state, in a checkpoint."""
    return {int(client): version for client, version in payloads.get("versions", {}).items()}


def _write_finished(folder: Path, run: Run, recorder: Recorder) -> None:
    """Write finished.json, and result.json if every domain could be tested."""
    rows = [event["accuracy"] for event in read_events(folder / "events.jsonl") if event["event"] == "task_finished"]
    if not any(value is None for row in rows for value in row):
        write_result(folder, run, federation_origin(recorder.plan, run))
    content = {
        "model_sha256": run.model_sha256(),
        "matrix": rows,
        "refusals": dict(recorder.engine.refusals),
        "audit_head": recorder.audit_log.head,
    }
    write_atomic(folder / "finished.json", (json.dumps(content, indent=1) + "\n").encode())


def _open_federation(folder: Path, plan: FederationPlan) -> Membership:
    """The sites and tasks of the run, after the changes that were requested."""
    if not (folder / MEMBERS_FILE).exists():
        if (folder / "events.jsonl").exists():
            raise InputError(f"out={folder}: it contains a run that is not a federation; choose another folder")
        Membership.of(plan).write(folder)
    members, log_path = Membership.read(folder), folder / "audit.jsonl"
    members.apply(plan, folder)

    def audited() -> set[str]:
        return {str(line["id"]) for line in read_lines(log_path) if "id" in line} if log_path.exists() else set()

    def append(event: str, fields: dict[str, Any]) -> None:
        AuditLog(log_path, open_signer(folder)).append(event, fields)

    return apply_changes(folder, members, audited, append)


def _check_settings(folder: Path, settings: Mapping[str, Any], may_differ: Collection[str] = ()) -> None:
    found = resolve(directory.settings(folder)).flat()
    for key, value in settings.items():
        if key != "out" and key not in may_differ and found.get(key) != value:
            raise InputError(f"out={folder}: it contains a run with {key}={found.get(key)}, not {key}={value}")
