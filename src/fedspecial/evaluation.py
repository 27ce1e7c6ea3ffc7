"""A finished model on a benchmark's domains."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from fedspecial import rundir
from fedspecial.config import resolve
from fedspecial.core.vector import FlatModel
from fedspecial.data.benchmark import Benchmark
from fedspecial.engine import checkpoint as checkpoints
from fedspecial.engine.blobs import Blobs
from fedspecial.engine.evaluate import mean_accuracy
from fedspecial.engine.states import ClientStates
from fedspecial.errors import InputError
from fedspecial.session import fixed_threads, load_benchmark, make_federation, make_module, settle_sites


def evaluate(folder: Path, benchmark: Benchmark | None = None, module: nn.Module | None = None) -> dict[str, float]:
    """The finished model of a run on a benchmark's domains, by default those it learned."""
    if not (folder / "model.safetensors").exists():
        raise InputError(f"{folder}: the run is not finished (no model.safetensors); resume it first")
    resolved = resolve(rundir.words(folder))
    benchmark = load_benchmark(resolved.config) if benchmark is None else benchmark.check()
    config = settle_sites(resolved, benchmark).config
    benchmark = make_federation(config, benchmark).benchmark  # missing values are filled as in the run
    state = load_file(folder / "model.safetensors")
    outputs = state["fc.weight"].shape[0] if "fc.weight" in state else len(benchmark.classes)
    if len(benchmark.classes) > outputs:
        raise InputError(f"benchmark '{benchmark.name}': {len(benchmark.classes)} classes, but the model has {outputs}")
    with fixed_threads(config.threads):
        module = make_module(config.model_copy(update={"weights": None}), benchmark, outputs, module)
        try:
            module.load_state_dict(state, strict=False)
        except RuntimeError:
            raise InputError(f"benchmark '{benchmark.name}': its inputs do not fit the model of {folder}") from None
        model = FlatModel(module)
        saved = checkpoints.load(folder / "checkpoint") if config.batch_norm == "local" else None
        states = ClientStates(Blobs(folder / "checkpoint" / "blobs"), saved.clients) if saved else None
        return {
            domain.name: mean_accuracy(model, model.vector.clone(), domain.test, benchmark, states, config.clients)
            for domain in benchmark.domains
        }
