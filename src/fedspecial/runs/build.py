"""From the settings of a run to the objects that execute it, and from a finished run to its files."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from fedspecial import methods, models
from fedspecial.config import Config, GivenObject, RunSettings, Settings, resolve
from fedspecial.core.events import Event, EventLog, read_events
from fedspecial.core.imports import describe_error
from fedspecial.core.messages import ServerState
from fedspecial.core.streams import stream_seed, torch_stream
from fedspecial.core.vector import FlatModel
from fedspecial.data.benchmark import Benchmark
from fedspecial.data.federation import Federation
from fedspecial.data.schema import DataSchema
from fedspecial.engine.base import Engine
from fedspecial.engine.checkpoint import Checkpoint, Checkpointer, Position
from fedspecial.engine.client import ClientRunner
from fedspecial.engine.client_states import ClientStates
from fedspecial.engine.clock import ClientClock
from fedspecial.engine.head import wider_head
from fedspecial.engine.in_flight import SimulatedWork
from fedspecial.engine.inprocess import InProcess
from fedspecial.engine.local import LocalTraining
from fedspecial.engine.payloads import PayloadTracker
from fedspecial.engine.pooled import PooledEngine
from fedspecial.engine.privacy import private_aggregation
from fedspecial.engine.run import Run
from fedspecial.engine.workers import ProcessPool
from fedspecial.errors import InputError
from fedspecial.methods.base import Method, ProblemSpec
from fedspecial.models.custom import Factory, call_factory, check_weights
from fedspecial.objectives.base import Objective
from fedspecial.report.certificate import issue
from fedspecial.runs.cores import number_of_workers
from fedspecial.runs.data import apply_sites, load_benchmark, make_federation, name_in
from fedspecial.runs.devices import device_of, use_deterministic_algorithms
from fedspecial.runs.model_files import load_weights

Listener = Callable[[Event], None]
GivenModel = nn.Module | Factory
"""A model that the caller passed: a module, of which every run trains a copy, or a function that makes one."""
Connect = Callable[[ClientRunner, Checkpointer, Checkpoint | None], Engine]


def prepare(
    folder: Path,
    resolved: RunSettings,
    federation: Federation,
    model: GivenModel | None,
    saved: Checkpoint | None,
    listeners: tuple[Listener, ...] = (),
    connect: Connect | None = None,
    commit: Callable[[], None] | None = None,
) -> Run:
    """A run with its event log, at its beginning or at its checkpoint.

    commit: called when everything was checked, before the event log is opened, which cuts it to the checkpoint
    """
    parts = assemble(folder, resolved, federation, model, saved, connect)
    runner, config, method = parts.runner, resolved.config, resolved.method
    with contextlib.ExitStack() as opened:  # closed if the run is refused
        opened.callback(parts.engine.close)
        if commit is not None:
            if config.dp_clip:
                _check_privacy_budget(folder, config, federation, saved)
            commit()
        log = EventLog(folder / "events.jsonl", cut=saved.events_length if saved else 0)
        opened.callback(log.close)
        run = Run(
            *(config, method, federation, runner.model, runner.networks, runner.problem, parts.engine, log),
            *(parts.checkpointer, parts.vector, parts.server, saved.position if saved else Position(), listeners),
            *(resolved.objective, issue),
            private=private_aggregation(
                config, federation.num_tasks, federation.clients, read_events(log.path) if config.dp_clip else ()
            ),
            work=_simulated_work(config, parts.checkpointer, saved) if config.has_clock and connect is None else None,
        )
        opened.pop_all()
    return run


def _check_privacy_budget(folder: Path, config: Config, federation: Federation, saved: Checkpoint | None) -> None:
    """Refuse further tasks that the privacy budget does not allow."""
    events = read_events(folder / "events.jsonl")
    private = private_aggregation(config, federation.num_tasks, federation.clients, events)
    rounds = (federation.num_tasks + 1 - (saved.position.task if saved else 1)) * config.rounds
    if private is not None:
        private.check_budget(config.clients_per_round, federation.clients, rounds)


def _simulated_work(config: Config, checkpointer: Checkpointer, saved: Checkpoint | None) -> SimulatedWork:
    work = SimulatedWork(ClientClock.of(config))
    if saved is not None:
        work.restore(saved.work, saved.position.task, checkpointer)
    return work


@dataclass(frozen=True)
class Parts:
    """What training and evaluating a model needs: the clients' side, the server's state, and the engine between."""

    runner: ClientRunner
    checkpointer: Checkpointer
    vector: Tensor
    server: ServerState
    engine: Engine


def assemble(
    folder: Path,
    resolved: RunSettings,
    federation: Federation,
    model: GivenModel | None,
    saved: Checkpoint | None,
    connect: Connect | None = None,
) -> Parts:
    """The parts of a run, with the state of the checkpoint if there is one; `connect` makes another engine."""
    config = resolved.config
    runner = make_client_runner(resolved, federation, model, saved.position if saved else Position())
    checkpointer = Checkpointer(folder / "checkpoint", config.checkpoint_seconds)
    vector, layout = runner.model.vector.clone(), runner.model.layout
    learned = layout.size if config.batch_norm == "average" else layout.num_weights
    networks = {name: part.vector.clone() for name, part in runner.networks.items()}
    server = ServerState(vector[:learned], tensors=networks)
    if saved is not None:
        if saved.layout != layout.fingerprint:
            raise InputError(
                f"checkpoint: {folder} was written with another model (names, shapes or frozen weights differ)"
            )
        vector.copy_(checkpointer.tensor(saved.vector))
        checkpointer.restore(saved, server)
        for name, network in networks.items():
            if len(server.tensors[name]) != len(network):
                raise InputError(
                    f"method={resolved.method.name}: its network '{name}' is made for a number of classes, so a run "
                    "cannot be extended by new ones; name all of them in `classes` of the benchmark when it starts"
                )
    given = federation.separate or federation.benchmark  # worker processes join the domains themselves
    engine = (connect or choose_engine(resolved, given, model))(runner, checkpointer, saved)
    return Parts(runner, checkpointer, vector, server, engine)


def choose_engine(resolved: RunSettings, benchmark: Benchmark, model: GivenModel | None) -> Connect:
    """The engine that the settings name: this process alone, worker processes, or Ray actors."""
    config = resolved.config
    workers = min(number_of_workers(config.workers, config.threads), config.clients)

    def connect(runner: ClientRunner, checkpointer: Checkpointer, saved: Checkpoint | None) -> Engine:
        states = ClientStates(checkpointer.blobs, saved.clients if saved else {})
        payloads = PayloadTracker(saved.payloads if saved else None)
        if workers == 1 and config.engine == "local":
            return InProcess(runner, states, payloads)
        given = benchmark if isinstance(config.benchmark, GivenObject) else None
        module = None
        if model is not None:
            # Made here, so that a function that cannot be sent to another process, such as a lambda, can be used.
            module = make_module(config, runner.federation.benchmark, runner.federation.num_classes(1), model)
        own = resolved.objective if isinstance(config.objective, GivenObject) else None
        objects = (given, module, _object_method(resolved), own)
        build = partial(worker_runner, resolved.flat(), *objects, benchmark.schema)
        if config.engine == "ray":
            from fedspecial.runs.ray_pool import ray_pool

            return PooledEngine(runner, states, payloads, ray_pool(config, build))
        return PooledEngine(runner, states, payloads, ProcessPool(workers, build, config.threads))

    return connect


def worker_runner(
    settings: Settings,
    benchmark: Benchmark | None,
    model: GivenModel | None,
    method: Method | None,
    objective: Objective | None = None,
    schema: DataSchema | None = None,
) -> ClientRunner:
    """The client runner of a worker process: it reads the data itself, except for objects that the caller passed."""
    resolved = resolve(settings, method, objective)
    if resolved.config.deterministic:
        use_deterministic_algorithms()
    if benchmark is None:
        benchmark = load_benchmark(resolved.config, resolved.objective.targets, schema=schema)
        resolved = apply_sites(resolved, benchmark)
    all_domains = resolved.method.all_domains
    return make_client_runner(resolved, make_federation(resolved.config, benchmark, all_domains=all_domains), model)


def _object_method(resolved: RunSettings) -> Method | None:
    """The method itself where a worker could not make it from the settings."""
    name = resolved.config.method
    return None if name in methods.names() or ".py:" in name else resolved.method


def make_client_runner(
    resolved: RunSettings, federation: Federation, model: GivenModel | None, position: Position = Position()
) -> ClientRunner:
    """What local training needs: the model at that position, further networks of the method, the training plan."""
    config, method = resolved.config, resolved.method
    # Between tasks the head still has the previous task's outputs; it grows when the task begins.
    outputs = federation.num_classes(position.task if position.round else max(1, position.task - 1))
    module = make_module(config, federation.benchmark, outputs, model)
    problem = _problem_spec(federation, module)
    method.check_problem(problem)
    device = device_of(config)
    plan = LocalTraining(
        None if config.local_steps else config.local_epochs,
        config.local_steps,
        config.batch_size,
        config.optimizer,
        config.momentum,
        config.weight_decay,
        watch_gradients=config.estimate,
        precision=config.precision,
        send_first_loss=config.detect != "none",
        min_batch=config.min_batch,
    )
    networks = _networks(method, problem, config.seed, device)
    local_statistics = config.batch_norm == "local"
    if config.bank_choice == "task" and config.bank_size < federation.num_tasks - 1:
        raise InputError(f"bank_size={config.bank_size}: with bank_choice=task it must hold all earlier tasks")
    return ClientRunner(
        *(federation, method, FlatModel(module.to(device)), networks, problem, plan, config.seed, local_statistics),
        objective=resolved.objective,
        bank_temperature=config.bank_temperature,
        bank_by_task=config.bank_choice == "task",
    )


def _problem_spec(federation: Federation, module: nn.Module) -> ProblemSpec:
    benchmark, head = federation.benchmark, getattr(module, "fc", None)
    features = None
    if isinstance(head, nn.Linear) and hasattr(module, "features") and head.weight.dtype == torch.float32:
        features = head.in_features
    shape, counts = benchmark.input_shape, (len(benchmark.classes), federation.clients)
    return ProblemSpec(benchmark.kind, shape, *counts, benchmark.incremental, features, benchmark.mean, benchmark.std)


def _networks(method: Method, problem: ProblemSpec, seed: int, device: torch.device) -> dict[str, FlatModel]:
    with torch_stream(seed, "networks"):
        return {name: FlatModel(network.to(device)) for name, network in method.networks(problem).items()}


def make_module(config: Config, benchmark: Benchmark, outputs: int, model: GivenModel | None) -> nn.Module:
    """A new module with its initial weights and that many outputs."""
    module = initial_module(config, benchmark.input_shape, outputs, model)
    check_weights(module)
    if model is not None and benchmark.incremental == "class":
        wider_head(module, outputs, config.seed, 1)
    return module


def initial_module(config: Config, shape: tuple[int, ...], outputs: int, model: GivenModel | None) -> nn.Module:
    """A copy of the given module, or one whose weights are drawn from the seed."""
    seed = stream_seed(config.seed, "init") % 2**63
    if model is None:
        module = models.build(
            name_in("model", config.model),
            input_shape=shape,
            num_classes=outputs,
            width=config.width,
            seed=seed,
            encoder=config.encoder,
        )
        if config.weights is not None:
            load_weights(module, Path(config.weights))
        return module
    if isinstance(model, nn.Module):
        return _copied(model)
    name = config.model.object if isinstance(config.model, GivenObject) else config.model
    return call_factory(model, name, input_shape=shape, num_classes=outputs, width=config.width, seed=seed)


def _copied(module: nn.Module) -> nn.Module:
    """A copy to train, so that the caller's module keeps its weights and every run starts from the same ones."""
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise InputError(
            f"model={type(module).__name__}: it cannot be copied ({describe_error(error)}); "
            "pass a function that makes it: model=lambda: …"
        ) from error
