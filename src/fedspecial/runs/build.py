"""From the settings of a run to the objects that execute it, and from a finished run to its files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from fedspecial import methods, models
from fedspecial.config import Config, GivenObject, RunSettings, Settings, data_folder, resolve
from fedspecial.core.events import Event, EventLog
from fedspecial.core.messages import ServerState
from fedspecial.core.streams import stream, stream_seed, torch_stream
from fedspecial.core.vector import FlatModel
from fedspecial.data.benchmark import Benchmark, Domain
from fedspecial.data.federation import Federation
from fedspecial.data.impute import impute
from fedspecial.data.partition import Partition, make_partition
from fedspecial.engine.base import Engine
from fedspecial.engine.checkpoint import Checkpoint, Checkpointer, Position
from fedspecial.engine.client import ClientRunner
from fedspecial.engine.client_states import ClientStates
from fedspecial.engine.head import wider_head
from fedspecial.engine.inprocess import InProcess
from fedspecial.engine.local import LocalTraining
from fedspecial.engine.loop import Run
from fedspecial.engine.payloads import PayloadTracker
from fedspecial.engine.pooled import PooledEngine
from fedspecial.engine.workers import ProcessPool
from fedspecial.errors import InputError
from fedspecial.methods.base import Method, ProblemSpec
from fedspecial.report.certificate import issue
from fedspecial.runs.cores import number_of_workers
from fedspecial.runs.devices import device_of, use_deterministic_algorithms

Listener = Callable[[Event], None]
Connect = Callable[[ClientRunner, Checkpointer, Checkpoint | None], Engine]


def prepare(
    folder: Path,
    resolved: RunSettings,
    federation: Federation,
    module: nn.Module | None,
    saved: Checkpoint | None,
    listeners: tuple[Listener, ...] = (),
    connect: Connect | None = None,
) -> Run:
    """A run with its event log, at its beginning or at its checkpoint."""
    parts = assemble(folder, resolved, federation, module, saved, connect)
    runner, config, method = parts.runner, resolved.config, resolved.method
    log = EventLog(folder / "events.jsonl", cut=saved.events_length if saved else 0)
    position = saved.position if saved else Position()
    return Run(
        *(config, method, federation, runner.model, runner.networks, runner.problem, parts.engine, log),
        *(parts.checkpointer, parts.vector, parts.server, position, listeners, issue),
    )


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
    module: nn.Module | None,
    saved: Checkpoint | None,
    connect: Connect | None = None,
) -> Parts:
    """The parts of a run, with the state of the checkpoint if there is one; `connect` makes another engine."""
    config = resolved.config
    runner = make_client_runner(resolved, federation, module, saved.position if saved else Position())
    model = runner.model
    checkpointer = Checkpointer(folder / "checkpoint", config.checkpoint_seconds)
    vector = model.vector.clone()
    learned = model.layout.size if config.batch_norm == "average" else model.layout.num_weights
    networks = {name: part.vector.clone() for name, part in runner.networks.items()}
    server = ServerState(vector[:learned], tensors=networks)
    if saved is not None:
        if saved.layout != model.layout.fingerprint:
            raise InputError(f"checkpoint: {folder} was written with another model (names or shapes differ)")
        vector.copy_(checkpointer.tensor(saved.vector))
        checkpointer.restore(saved, server)
    engine = (connect or choose_engine(resolved, federation.benchmark, module))(runner, checkpointer, saved)
    return Parts(runner, checkpointer, vector, server, engine)


def choose_engine(resolved: RunSettings, benchmark: Benchmark, module: nn.Module | None) -> Connect:
    """The engine that the settings name: this process alone, worker processes, or Ray actors."""
    config = resolved.config
    workers = min(number_of_workers(config.workers, config.threads), config.clients)

    def connect(runner: ClientRunner, checkpointer: Checkpointer, saved: Checkpoint | None) -> Engine:
        states = ClientStates(checkpointer.blobs, saved.clients if saved else {})
        payloads = PayloadTracker(saved.payloads if saved else None)
        if workers == 1 and config.engine == "local":
            return InProcess(runner, states, payloads)
        given = benchmark if isinstance(config.benchmark, GivenObject) else None
        build = partial(worker_runner, resolved.flat(), given, module, _object_method(resolved))
        if config.engine == "ray":
            from fedspecial.runs.ray_pool import ray_pool

            return PooledEngine(runner, states, payloads, ray_pool(config, build))
        return PooledEngine(runner, states, payloads, ProcessPool(workers, build, config.threads))

    return connect


def worker_runner(
    settings: Settings, benchmark: Benchmark | None, module: nn.Module | None, method: Method | None
) -> ClientRunner:
    """The client runner of a worker process: it reads the data itself, except for objects that the caller passed."""
    resolved = resolve(settings, method)
    if resolved.config.deterministic:
        use_deterministic_algorithms()
    if benchmark is None:
        benchmark = load_benchmark(resolved.config)
        resolved = apply_sites(resolved, benchmark)
    return make_client_runner(resolved, make_federation(resolved.config, benchmark), module)


def _object_method(resolved: RunSettings) -> Method | None:
    """The method itself where a worker could not make it from the settings."""
    name = resolved.config.method
    return None if name in methods.names() or ".py:" in name else resolved.method


def make_client_runner(
    resolved: RunSettings, federation: Federation, module: nn.Module | None, position: Position = Position()
) -> ClientRunner:
    """What local training needs: the model at that position, further networks of the method, the training plan."""
    config, method = resolved.config, resolved.method
    # Between tasks the head still has the previous task's outputs; it grows when the task begins.
    outputs = federation.num_classes(position.task if position.round else max(1, position.task - 1))
    module = make_module(config, federation.benchmark, outputs, module)
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
    )
    networks = _networks(method, problem, config.seed, device)
    local_statistics = config.batch_norm == "local"
    return ClientRunner(
        federation, method, FlatModel(module.to(device)), networks, problem, plan, config.seed, local_statistics
    )


def _problem_spec(federation: Federation, module: nn.Module) -> ProblemSpec:
    benchmark, head = federation.benchmark, getattr(module, "fc", None)
    features = head.in_features if isinstance(head, nn.Linear) and hasattr(module, "features") else None
    shape, counts = benchmark.input_shape, (len(benchmark.classes), federation.num_tasks, federation.clients)
    return ProblemSpec(benchmark.kind, shape, *counts, benchmark.incremental, features, benchmark.mean, benchmark.std)


def _networks(method: Method, problem: ProblemSpec, seed: int, device: torch.device) -> dict[str, FlatModel]:
    with torch_stream(seed, "networks"):
        return {name: FlatModel(network.to(device)) for name, network in method.networks(problem).items()}


def load_benchmark(config: Config, notice: Callable[[str], None] = lambda text: None) -> Benchmark:
    """The benchmark of a run. With `holdout`, a part of the training samples replaces the test samples, for tuning."""
    from fedspecial.data import catalogue

    name = _name_in("benchmark", config.benchmark)
    benchmark = catalogue.load(
        name,
        data=data_folder(config),
        domains=config.domains,
        cap=config.cap,
        image_size=config.image_size,
        seed=config.seed,
        on_bad=config.on_bad,
        notice=notice,
        **config.options_for(catalogue.entry(name).options),
    )
    if config.holdout:
        benchmark = benchmark.held_out(config.holdout, config.seed)
    return benchmark.check()


def _name_in(key: str, value: str | GivenObject) -> str:
    if isinstance(value, GivenObject):
        raise InputError(f"{key}={value.object}: this is a Python object, which can be passed only from Python")
    return value


def apply_sites(resolved: RunSettings, benchmark: Benchmark) -> RunSettings:
    """Where the data comes from real sites, the sites are the clients and their data is not partitioned again."""
    counts = {len(domain.sites) for domain in benchmark.domains if domain.sites is not None}
    config = resolved.config
    if not counts:
        return resolved
    if len(counts) > 1:
        raise InputError(f"benchmark '{benchmark.name}': its domains have {sorted(counts)} sites; give each every site")
    sites = counts.pop()
    if config.clients_per_round > sites:
        raise InputError(f"clients_per_round={config.clients_per_round}: the data has only {sites} sites")
    return RunSettings(config.model_copy(update={"clients": sites, "partition": "sites"}), resolved.method)


def make_federation(config: Config, benchmark: Benchmark) -> Federation:
    """The clients and their data, which depend on the seed, the task and the partition settings, not on the method."""

    def partition_task(task: int, domain: Domain) -> Partition:
        keys = () if config.shared_proportions else (task,)
        return make_partition(
            config.partition,
            domain.train.y.numpy(),
            config.clients,
            alpha=config.alpha,
            min_per_client=config.min_per_client,
            sites=domain.sites,
            rng=stream(config.seed, "partition", *keys),
        )

    if benchmark.kind == "table" and any(bool(torch.isnan(d.train.x).any()) for d in benchmark.domains):
        benchmark = impute(benchmark, [partition_task(i, d) for i, d in enumerate(benchmark.domains, start=1)])
    return Federation(benchmark, config.clients, partition_task)


def make_module(config: Config, benchmark: Benchmark, outputs: int, module: nn.Module | None) -> nn.Module:
    if module is None:
        shape, seed = benchmark.input_shape, stream_seed(config.seed, "init") % 2**63
        module = models.build(
            _name_in("model", config.model),
            input_shape=shape,
            num_classes=outputs,
            width=config.width,
            seed=seed,
            encoder=config.encoder,
        )
        if config.weights is not None:
            _load_weights(module, Path(config.weights))
    elif benchmark.incremental == "class":
        wider_head(module, outputs, config.seed, 1)
    return module


def _load_weights(module: nn.Module, path: Path) -> None:
    """Start from weights in a safetensors file; the head may have another number of classes."""
    try:
        state = safetensors.torch.load_file(path)
    except Exception as error:
        raise InputError(f"weights={path}: cannot be read as safetensors ({error})") from None
    own = module.state_dict()
    fitting = {name: tensor for name, tensor in state.items() if name in own and own[name].shape == tensor.shape}
    missing = [name for name in own if name not in fitting and not name.startswith("fc.")]
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing:
        raise InputError(f"weights={path}: it has no '{missing[0]}' of the model's shape ({len(missing)} missing)")
    module.load_state_dict(fitting, strict=False)
