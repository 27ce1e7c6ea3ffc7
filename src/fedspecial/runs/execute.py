"""Executing a run: load the data, train what is left, write the result."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedspecial.config import Config, GivenObject, RunSettings
from fedspecial.config.paths import short_name
from fedspecial.core.events import DataNotice, EngineStarted, RunResumed, RunStarted, read_events
from fedspecial.core.extension import RunExtended, task_names
from fedspecial.core.files import write_atomic
from fedspecial.core.frozen import frozen_tensors
from fedspecial.data.absent_classes import describe_absent_classes, describe_single_class
from fedspecial.data.benchmark import Benchmark
from fedspecial.data.impute import describe_missing
from fedspecial.data.matching import match
from fedspecial.data.schema import DataSchema
from fedspecial.engine import checkpoint as checkpoints
from fedspecial.engine.checkpoint import Checkpoint
from fedspecial.engine.loop import learn
from fedspecial.engine.run import Run
from fedspecial.errors import InputError
from fedspecial.report.model_card import SIMULATED, model_card
from fedspecial.report.plots import draw_curves, draw_drift, draw_matrix
from fedspecial.report.result import Result, result_of
from fedspecial.runs import directory
from fedspecial.runs.build import Listener, prepare
from fedspecial.runs.data import apply_sites, check_model, load_benchmark, make_federation
from fedspecial.runs.devices import one_at_a_time, torch_settings
from fedspecial.runs.model_files import write_frozen, write_model
from fedspecial.runs.modules import GivenModel
from fedspecial.runs.provenance import data_sha256, domain_hashes, versions


def execute(
    folder: Path,
    resolved: RunSettings,
    benchmark: Benchmark | None,
    model: GivenModel | None,
    listeners: tuple[Listener, ...] = (),
    new: Sequence[str] = (),
) -> Result:
    """Run what the run directory says, from its beginning or its checkpoint, and write the result there.

    new: domains by which the finished run of this directory is extended; recorded after everything was checked
    """
    with one_at_a_time(), torch_settings(resolved.config):
        notices: list[str] = []
        saved = checkpoints.load(folder / "checkpoint")
        known = directory.recorded_domains(folder)
        if known is None and new and (finished := directory.finished(folder)):
            known = dict.fromkeys(finished.tasks, "")  # a directory of format 2
        if benchmark is None and saved is not None and known is not None:
            resolved = _with_domains(resolved, [*known, *new])
        benchmark = _load(folder, resolved, benchmark, saved, notices)
        applied = apply_sites(resolved, benchmark.check())
        if new and applied.config.clients != resolved.config.clients:
            raise InputError(
                f"{', '.join(new)}: the data has {applied.config.clients} sites, but the run has "
                f"{resolved.config.clients} clients; an extension keeps them"
            )
        resolved = applied
        check_model(resolved.config, benchmark)
        if resolved.config.benchmark == "folders":
            config = resolved.config
            notices.append(
                f"{benchmark.kind} data: model={short_name(config.model)}, optimizer={config.optimizer}, "
                f"client_lr={config.client_lr:g}"
            )
        federation = make_federation(resolved.config, benchmark, all_domains=resolved.method.all_domains)
        federation.check()
        data = domain_hashes(benchmark)
        if saved is not None:
            _check_data(folder, benchmark, data, new)
        commit = partial(directory.write_extension, folder, resolved.flat(), {**_versions_then(folder), "data": data})
        run = prepare(folder, resolved, federation, model, saved, listeners, commit=commit if new else None)
        with contextlib.closing(run.engine):
            run_remaining(folder, resolved, run, saved, data, partial(_notices, benchmark, notices))
        return write_result(folder, run)


def _notices(benchmark: Benchmark, notices: Sequence[str], names: Sequence[str]) -> list[str]:
    """What the user should know about these domains, and about the data as a whole where the run begins."""
    chosen = replace(benchmark, domains=tuple(domain for domain in benchmark.domains if domain.name in names))
    general = notices if len(chosen.domains) == len(benchmark.domains) else ()
    return [*general, *describe_missing(chosen), *describe_absent_classes(chosen), *describe_single_class(chosen)]


def _with_domains(resolved: RunSettings, names: Sequence[str]) -> RunSettings:
    return replace(resolved, config=resolved.config.model_copy(update={"domains": tuple(names)}))


def _load(
    folder: Path, resolved: RunSettings, benchmark: Benchmark | None, saved: Checkpoint | None, notices: list[str]
) -> Benchmark:
    """The benchmark by name, or the given one; classes and inputs are those with which the run began."""
    targets = resolved.objective.targets
    schema = DataSchema.read(folder) if saved is not None else None
    if benchmark is None:
        return load_benchmark(resolved.config, targets, notices.append, schema)
    benchmark = benchmark.with_targets(targets)
    return match(benchmark, schema, str(folder)) if schema is not None else benchmark


def _check_data(folder: Path, benchmark: Benchmark, data: dict[str, str], new: Sequence[str]) -> None:
    """Refuse if the data of the domains that the run knows is not the data with which it began."""
    about = directory.about(folder)
    found = {name: sha256 for name, sha256 in data.items() if name not in new}
    recorded = about.get("data", found)
    if about["format"] == 2:
        known = replace(benchmark, domains=tuple(domain for domain in benchmark.domains if domain.name not in new))
        found, recorded = {"all": data_sha256(known)}, {"all": about.get("data_sha256")}
    if list(found.items()) != list(recorded.items()):
        raise InputError(f"{folder}: the data differs from the data with which the run began (another hash)")


def _versions_then(folder: Path) -> dict[str, Any]:
    """The versions with which the run began; those of an extension are in its event."""
    recorded = directory.about(folder)
    return {key: recorded[key] for key in versions() if key in recorded}


def run_remaining(
    folder: Path,
    resolved: RunSettings,
    run: Run,
    saved: Checkpoint | None,
    data: dict[str, str],
    notices: Callable[[Sequence[str]], Sequence[str]] = lambda names: (),
) -> None:
    """Train the tasks and rounds that are left.

    data: the hash of each domain · notices: what the user should know about these domains
    """
    with contextlib.closing(run.log):
        names = run.federation.benchmark.task_names
        if saved is None:
            write_frozen(folder, run.model)
            directory.write_settings(folder, resolved.flat(), {**versions(), "data": data})
            run.federation.benchmark.schema.write(folder)
            run.emit(_started(run))
            run.emit(EngineStarted(run.engine.workers))
        else:
            run.tell(_started(run))
            run.tell(RunResumed(saved.position.task, saved.position.round))
            names = names[len(task_names(read_events(run.log.path))) :]
            if names:
                run.federation.benchmark.schema.write(folder)  # a class-incremental run may have further classes
                hashes = {name: data[name] for name in names}
                run.emit(RunExtended(saved.position.task, names, run.model_sha256(), hashes, versions()))
            run.emit(EngineStarted(run.engine.workers))
        for text in notices(names) if names else ():
            run.emit(DataNotice(text))
        learn(run)


@dataclass(frozen=True)
class Origin:
    """What a model card says about where a model comes from, if not from `fedspecial run`."""

    trained_by: str
    command: str
    licence: str


def write_result(folder: Path, run: Run, origin: Origin | None = None) -> Result:
    """Derive every file from the events; result.json comes last and marks the run as finished."""
    events = read_events(folder / "events.jsonl")
    result = result_of(events)
    write_model(folder, run.model_state())
    card = model_card(
        result,
        command=origin.command if origin else _command(run.config),
        licence=origin.licence if origin else run.federation.benchmark.licence,
        weights=run.model.layout.num_weights,
        model=short_name(run.config.model),
        kind=run.federation.benchmark.kind,
        inputs=run.federation.benchmark.schema.describe(),
        trained_by=origin.trained_by if origin else SIMULATED,
        classes=run.federation.benchmark.classes,
    )
    write_atomic(folder / "README.md", card.encode())
    draw_matrix(result, folder / "matrix.png")
    draw_curves(events, folder / "curves.png")
    draw_drift(events, folder / "drift.png")
    write_atomic(folder / "result.json", (json.dumps(result.to_json(), indent=1) + "\n").encode())
    return result


def _command(config: Config) -> str:
    """How to train the same model again; Python objects are not saved, so the caller passes them again."""
    given = {key: value for key in ("benchmark", "model") if isinstance(value := getattr(config, key), GivenObject)}
    if not given:
        return "`fedspecial run config.yaml`"
    call = ", ".join([*(f"{key}=…" for key in given), 'config="config.yaml"'])
    objects = " and ".join(f"{key} '{value.object}'" for key, value in given.items())
    return f"`fedspecial.run({call})` in Python, with the {objects} that the run was started with"


def _started(run: Run) -> RunStarted:
    layout, benchmark = run.model.layout, run.federation.benchmark
    return RunStarted(
        run.method.name,
        asdict(run.method),
        benchmark.name,
        run.config.seed,
        benchmark.task_names,
        run.config.steps_per_task,
        run.federation.clients,
        layout.num_weights,
        layout.size - layout.num_weights,
        layout.fingerprint,
        versions(),
        objective=run.objective.name,
        metric={"name": run.objective.main.name, "low": run.objective.main.low, "high": run.objective.main.high},
        num_frozen=sum(tensor.numel() for tensor in frozen_tensors(run.model.module).values()),
        frozen_sha256=layout.frozen,
        all_domains=run.method.all_domains,
        **_stream_fields(run),
    )


def _stream_fields(run: Run) -> dict[str, Any]:
    """What the first event says about the stream of domains, where it is not the ordinary one."""
    schedule, names = run.federation.schedule, run.federation.benchmark.task_names
    if schedule is None:
        return {}
    visits = [names[number - 1] for number in schedule.visited] if schedule.passes > 1 else []
    borders = schedule.borders if run.detects else []
    return {
        "stream": schedule.kind,
        "visits": visits,
        "change_rounds": schedule.width,
        "detect": run.config.detect,
        "borders": borders,
    }
