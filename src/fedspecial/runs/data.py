"""From the settings of a run to its data: the benchmark, and which client has which rows of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from fedspecial.config import Config, GivenObject, RunSettings, data_folder
from fedspecial.core.streams import stream
from fedspecial.core.targets import TargetKind
from fedspecial.data.benchmark import Benchmark
from fedspecial.data.federation import Federation, with_all_domains
from fedspecial.data.impute import has_missing, impute
from fedspecial.data.partition import Partition, make_partition
from fedspecial.data.samples import Domain
from fedspecial.data.schema import DataSchema
from fedspecial.data.stream_schedule import StreamSchedule
from fedspecial.errors import InputError


def load_benchmark(
    config: Config,
    targets: TargetKind = "classes",
    notice: Callable[[str], None] = lambda text: None,
    schema: DataSchema | None = None,
) -> Benchmark:
    """The benchmark of a run. With `holdout`, a part of the training samples replaces the test samples, for tuning.

    targets: what the objective of the run needs
    schema: of the model, where there is one already: classes are matched by name, and inputs are made as it says
    """
    from fedspecial.data import catalogue

    name = name_in("benchmark", config.benchmark)
    benchmark = catalogue.load(
        name,
        data=data_folder(config),
        domains=config.domains,
        cap=config.cap,
        image_size=config.image_size,
        seed=config.seed,
        on_bad=config.on_bad,
        notice=notice,
        schema=schema,
        targets=targets,
        **config.options_for(catalogue.entry(name).options),
    )
    if config.holdout:
        benchmark = benchmark.held_out(config.holdout, config.seed)
    return benchmark.check()


def name_in(key: str, value: str | GivenObject) -> str:
    if isinstance(value, GivenObject):
        raise InputError(f"{key}={value.object}: this is a Python object, which can be passed only from Python")
    return value


def check_model(config: Config, benchmark: Benchmark) -> None:
    """Refuse a built-in model for another kind of data: token ids are not numbers to compute with, and the reverse."""
    x, reads_text = benchmark.domains[0].train.x, config.model in ("text", "transformer")
    if config.model in ("logistic", "mlp", "cnn", "resnet18") and benchmark.kind == "text" and x.dtype == torch.int64:
        raise InputError(
            f"model={config.model}: the data is texts as token ids; use model=text or model=transformer, or give the "
            "numbers of a table as float32"
        )
    if reads_text and x.dtype != torch.int64:
        raise InputError(f"model={config.model}: it reads token ids, but the data is of kind '{benchmark.kind}'")


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
    return replace(resolved, config=config.model_copy(update={"clients": sites, "partition": "sites"}))


def make_federation(config: Config, benchmark: Benchmark, *, all_domains: bool = False) -> Federation:
    """The clients and their data, which depend on the seed, the task and the partition settings, not on the method."""

    if has_missing(benchmark):
        benchmark = impute(benchmark, partitions(config, benchmark))
    federation = Federation(
        benchmark, config.clients, partial(partition_domain, config), schedule=stream_schedule(config, benchmark)
    )
    return with_all_domains(federation) if all_domains else federation


def partitions(config: Config, benchmark: Benchmark) -> list[Partition]:
    """The partition of each domain, in order."""
    return [partition_domain(config, number, domain) for number, domain in enumerate(benchmark.domains, start=1)]


def partition_domain(config: Config, number: int, domain: Domain) -> Partition:
    """Which client has which training rows of the domain with this number, as the settings say."""
    keys = () if config.shared_proportions else (number,)
    labels = domain.labels_to_divide(config.partition, config.partition_by)
    try:
        return make_partition(
            config.partition,
            labels,
            config.clients,
            alpha=config.alpha,
            min_per_client=config.min_per_client,
            sites=domain.sites,
            rng=stream(config.seed, "partition", *keys),
        )
    except InputError as error:
        raise InputError(f"domain '{domain.name}': {error}") from None


def stream_schedule(config: Config, benchmark: Benchmark) -> StreamSchedule | None:
    """Which domain each client has in which round; None where this follows from the task alone."""
    if config.stream == "sharp" and config.detect == "none":
        return None
    if benchmark.incremental == "class" and (config.stream_width or config.detect != "none"):
        field = f"detect={config.detect}" if config.detect != "none" else f"stream={config.stream}"
        raise InputError(
            f"{field}: not for benchmark '{benchmark.name}', which adds classes with every domain: the head grows when "
            "a task is announced"
        )
    width, passes = config.stream_width, config.passes
    return StreamSchedule(
        len(benchmark.domains), config.rounds, config.clients, config.stream, width, passes, config.seed
    )
