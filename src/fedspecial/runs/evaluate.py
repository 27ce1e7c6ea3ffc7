"""A finished model on a benchmark's domains."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from fedspecial.config import Resolved, resolve
from fedspecial.core.messages import ServerState
from fedspecial.data.benchmark import Benchmark
from fedspecial.engine import checkpoint as checkpoints
from fedspecial.engine.checkpoint import Checkpointer
from fedspecial.engine.client_states import ClientStates
from fedspecial.engine.inprocess import InProcess
from fedspecial.engine.payloads import PayloadTracker
from fedspecial.errors import InputError
from fedspecial.runs import directory as directory
from fedspecial.runs.build import (
    apply_sites,
    fixed_threads,
    load_benchmark,
    make_client_runner,
    make_federation,
    make_module,
)


def evaluate(folder: Path, benchmark: Benchmark | None = None, module: nn.Module | None = None) -> dict[str, float]:
    """The finished model of a run on a benchmark's domains, by default those it learned."""
    if not (folder / "model.safetensors").exists():
        raise InputError(f"{folder}: the run is not finished (no model.safetensors); resume it first")
    resolved = resolve(directory.settings(folder))
    benchmark = load_benchmark(resolved.config) if benchmark is None else benchmark.check()
    resolved = apply_sites(resolved, benchmark)
    with fixed_threads(resolved.config.threads):
        return _accuracies(folder, resolved, benchmark, module)


def _accuracies(folder: Path, resolved: Resolved, benchmark: Benchmark, module: nn.Module | None) -> dict[str, float]:
    config, method = resolved.config, resolved.method
    federation = make_federation(config, benchmark)  # missing values are filled as in the run
    benchmark = federation.benchmark
    module = _finished_module(folder, resolved, benchmark, module)
    runner = make_client_runner(resolved, federation, module)
    checkpointer, saved = Checkpointer(folder / "checkpoint", 0), None
    if method.personal or config.batch_norm == "local":
        saved = checkpoints.load(folder / "checkpoint")
    vector, learned = runner.model.vector.clone(), runner.model.layout.num_weights
    server = ServerState(vector if config.batch_norm == "average" else vector[:learned])
    if saved is not None:
        checkpointer.restore(saved, server)
    engine = InProcess(runner, ClientStates(checkpointer.blobs, saved.clients if saved else {}), PayloadTracker())
    last = federation.num_tasks
    return {
        domain.name: engine.accuracy(lambda client: method.eval_broadcast(server, client, last), domain.test)
        for domain in benchmark.domains
    }


def _finished_module(folder: Path, resolved: Resolved, benchmark: Benchmark, module: nn.Module | None) -> nn.Module:
    state = load_file(folder / "model.safetensors")
    outputs = state["fc.weight"].shape[0] if "fc.weight" in state else len(benchmark.classes)
    if len(benchmark.classes) > outputs:
        raise InputError(f"benchmark '{benchmark.name}': {len(benchmark.classes)} classes, but the model has {outputs}")
    module = make_module(resolved.config.model_copy(update={"weights": None}), benchmark, outputs, module)
    try:
        module.load_state_dict(state, strict=False)
    except RuntimeError:
        raise InputError(f"benchmark '{benchmark.name}': its inputs do not fit the model of {folder}") from None
    return module
