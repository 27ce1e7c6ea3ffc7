"""Executing a run: load the data, train what is left, write the result."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import safetensors.torch
from torch import nn

from fedspecial.config import RunSettings
from fedspecial.core.events import DataNotice, EngineStarted, RunResumed, RunStarted, read_events
from fedspecial.core.files import write_atomic
from fedspecial.data.benchmark import Benchmark
from fedspecial.engine import checkpoint as checkpoints
from fedspecial.engine.checkpoint import Checkpoint
from fedspecial.engine.loop import Run, learn
from fedspecial.errors import InputError
from fedspecial.report.model_card import model_card
from fedspecial.report.plots import draw_curves, draw_drift, draw_matrix
from fedspecial.report.result import Result, result_of
from fedspecial.runs import directory
from fedspecial.runs.build import Listener, apply_sites, load_benchmark, make_federation, prepare
from fedspecial.runs.devices import torch_settings
from fedspecial.runs.provenance import data_sha256, versions


def execute(
    folder: Path,
    resolved: RunSettings,
    benchmark: Benchmark | None,
    module: nn.Module | None,
    listeners: tuple[Listener, ...] = (),
) -> Result:
    """Run what the run directory says, from its beginning or its checkpoint, and write the result there."""
    with torch_settings(resolved.config):
        notices: list[str] = []
        benchmark = benchmark.check() if benchmark else load_benchmark(resolved.config, notices.append)
        resolved = apply_sites(resolved, benchmark)
        saved = checkpoints.load(folder / "checkpoint")
        federation = make_federation(resolved.config, benchmark)
        federation.check()
        data = data_sha256(benchmark)
        if saved is not None and directory.about(folder).get("data_sha256", data) != data:
            raise InputError(f"{folder}: the data differs from the data with which the run began (another hash)")
        run = prepare(folder, resolved, federation, module, saved, listeners)
        with contextlib.closing(run.engine):
            run_remaining(folder, resolved, run, saved, data, notices)
        return write_result(folder, run)


def run_remaining(
    folder: Path, resolved: RunSettings, run: Run, saved: Checkpoint | None, data: str, notices: Iterable[str] = ()
) -> None:
    """Train the tasks and rounds that are left; `data` is the hash of the data."""
    with contextlib.closing(run.log):
        if saved is None:
            directory.write_settings(folder, resolved.flat(), {**versions(), "data_sha256": data})
            run.emit(_started(run))
            run.emit(EngineStarted(run.engine.workers))
            for text in notices:
                run.emit(DataNotice(text))
        else:
            run.tell(_started(run))
            run.tell(RunResumed(saved.position.task, saved.position.round))
            run.emit(EngineStarted(run.engine.workers))
        learn(run)


def write_result(folder: Path, run: Run) -> Result:
    """Derive every file from the events; result.json comes last and marks the run as finished."""
    events = read_events(folder / "events.jsonl")
    result = result_of(events)
    named = {name: tensor.clone() for name, tensor in run.model.layout.named(run.vector.cpu())}
    write_atomic(folder / "model.safetensors", safetensors.torch.save(named))
    card = model_card(
        result,
        command=f"fedspecial run {folder / 'config.yaml'}",
        licence=run.federation.benchmark.licence,
        weights=run.model.layout.num_weights,
        model=str(run.config.model),
    )
    write_atomic(folder / "README.md", card.encode())
    draw_matrix(result, folder / "matrix.png")
    draw_curves(events, folder / "curves.png")
    draw_drift(events, folder / "drift.png")
    write_atomic(folder / "result.json", (json.dumps(result.to_json(), indent=1) + "\n").encode())
    return result


def _started(run: Run) -> RunStarted:
    layout, benchmark = run.model.layout, run.federation.benchmark
    return RunStarted(
        run.method.name,
        asdict(run.method),
        benchmark.name,
        run.config.seed,
        benchmark.task_names,
        run.config.rounds,
        run.federation.clients,
        layout.num_weights,
        layout.size - layout.num_weights,
        layout.fingerprint,
        versions(),
    )
