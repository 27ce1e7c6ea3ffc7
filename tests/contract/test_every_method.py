"""Laws that every registered method must satisfy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fedspecial import Benchmark, Result, methods, resume
from fedspecial.core.events import EXECUTION_EVENTS, RoundFinished, of_kind, read_events
from fedspecial.core.messages import ClientState, ServerState
from fedspecial.core.streams import stream
from fedspecial.engine import inprocess
from fedspecial.engine.checkpoint import load as load_checkpoint
from fedspecial.engine.run import Run
from fedspecial.methods import base
from method_problems import IMAGE_MODEL, problem_for
from toy_problems import begin, images, play, rotated_blobs
from toy_problems import learn as learn_in

every_method = pytest.mark.parametrize("name", methods.names())
FEDERATED = [name for name in methods.names() if not methods.find(name).simulation_only]
"""The methods for a federation; the laws of the reference methods are in tests/methods/test_reference_methods.py."""
every_federated_method = pytest.mark.parametrize("name", FEDERATED)


def learn(
    folder: Path, name: str, benchmark: Benchmark | None = None, *, fedavg_when: bool = False, **settings: Any
) -> Result:
    """A run of a method on its problem; `fedavg_when` uses the hyper-parameters with which it equals FedAvg."""
    problem, sizes = problem_for(name)
    own = {**sizes, **(methods.find(name).fedavg_when or {})} if fedavg_when else sizes
    return learn_in(folder, name, benchmark or problem, **{**own, **settings})


@dataclasses.dataclass(frozen=True)
class Learned:
    """A finished run that several tests read; none may change its folder."""

    folder: Path
    result: Result
    events: list[dict[str, Any]]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Learned]:
    """The run of a method on its problem, executed once."""
    return cache(lambda name: _finished(tmp_path_factory.mktemp(name) / "run", name, *problem_for(name)))


@pytest.fixture(scope="module")
def fedavg_on_the_problem_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Learned]:
    """FedAvg on the problem of a method, executed once per problem."""

    @cache
    def on(benchmark: str) -> Learned:
        problem, network = (images(tasks=3), IMAGE_MODEL) if benchmark == "images" else (rotated_blobs(), {})
        return _finished(tmp_path_factory.mktemp("fedavg") / "run", "fedavg", problem, network)

    return lambda name: on(problem_for(name)[0].name)


def _finished(folder: Path, name: str, problem: Benchmark, settings: dict[str, Any]) -> Learned:
    return Learned(folder, learn_in(folder, name, problem, **settings), without_times(folder))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Run, Path]]:
    """The run of a method with its parts in memory, after its last round, and its folder."""

    @cache
    def of(name: str) -> tuple[Run, Path]:
        folder = tmp_path_factory.mktemp(name) / "run"
        return play(prepared_run(folder, name)), folder

    return of


def prepared_run(folder: Path, name: str, **settings: Any) -> Run:
    problem, sizes = problem_for(name)
    return begin(folder, name, problem, **{**sizes, **settings})


def without_times(folder: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in event.items() if not key.startswith("seconds")}
        for event in read_events(folder / "events.jsonl")
        if event["event"] not in EXECUTION_EVENTS
    ]


@every_federated_method
def test_fedavg_settings_give_fedavg_bit_for_bit(
    name: str, fedavg_on_the_problem_for: Callable[[str], Learned], tmp_path: Path
) -> None:
    assert methods.find(name).fedavg_when is not None
    ours = learn(tmp_path / "ours", name, fedavg_when=True)
    fedavg = fedavg_on_the_problem_for(name).result
    assert ours.model_sha256 == fedavg.model_sha256
    assert ours.matrix == fedavg.matrix


@every_federated_method
def test_all_methods_get_the_same_clients_samples_and_rates(
    name: str, learned: Callable[[str], Learned], fedavg_on_the_problem_for: Callable[[str], Learned]
) -> None:
    ours, theirs = (of_kind(run.events, "round") for run in (learned(name), fedavg_on_the_problem_for(name)))
    assert len(ours) == len(theirs) == 9
    for own, fedavg in zip(ours, theirs, strict=True):
        for key in {"task", "round", "clients", "client_lr", "server_lr"} - methods.run_defaults(name).keys():
            assert own[key] == fedavg[key]
        if own["task"] == 1:  # in the first task there is nothing to replay
            assert (own["samples"], own["mean_steps"]) == (fedavg["samples"], fedavg["mean_steps"])


@every_method
def test_the_same_seed_gives_the_same_run(name: str, learned: Callable[[str], Learned], tmp_path: Path) -> None:
    learn(tmp_path / "again", name)
    assert without_times(tmp_path / "again") == learned(name).events


@every_method
def test_another_seed_gives_another_run(name: str, learned: Callable[[str], Learned], tmp_path: Path) -> None:
    assert learned(name).result.model_sha256 != learn(tmp_path / "other", name, seed=26).model_sha256


@every_method
def test_the_order_of_clients_does_not_matter(
    name: str, learned: Callable[[str], Learned], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = learned(name).result
    sample_clients = base.sample_clients
    monkeypatch.setattr(base, "sample_clients", lambda *args: sample_clients(*args)[::-1])
    assert learn(tmp_path / "backward", name).model_sha256 == forward.model_sha256


@every_method
def test_identical_clients_equal_one_client(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four clients with the same rows in the same order send the same delta, and its mean is itself.

    Only in the first task: what a client stores for later tasks may depend on the other clients.
    """
    monkeypatch.setattr(
        inprocess, "batch_order", lambda seed, task, round, client: stream(seed, "batches", task, round)
    )
    problem, settings = problem_for(name)
    problem = dataclasses.replace(problem, domains=problem.domains[:1])
    rows, shas = torch.arange(24).numpy(), []
    for count in (4, 1):
        run = begin(tmp_path / str(count), name, problem, **{**settings, "clients": count, "clients_per_round": count})
        run.federation.rows = lambda task, client: rows  # type: ignore[method-assign]
        play(run)
        shas.append(run.model.layout.digest(run.vector))
    assert shas[0] == shas[1]


@every_method
def test_a_stopped_run_resumes_to_the_same_result(name: str, learned: Callable[[str], Learned], tmp_path: Path) -> None:
    uninterrupted = learned(name)

    def stop_at(task: int, round: int) -> Any:
        def listener(event: Any) -> None:
            if isinstance(event, RoundFinished) and (event.task, event.round) == (task, round):
                raise KeyboardInterrupt

        return listener

    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "stopped", name, listeners=[stop_at(1, 1)])
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "stopped", benchmark=problem_for(name)[0], listeners=[stop_at(2, 2)])
    assert (
        resume(tmp_path / "stopped", benchmark=problem_for(name)[0]).model_sha256 == uninterrupted.result.model_sha256
    )
    assert without_times(tmp_path / "stopped") == uninterrupted.events


@every_method
def test_the_server_state_is_restored_from_a_checkpoint(name: str, played: Callable[[str], tuple[Run, Path]]) -> None:
    run, folder = played(name)
    saved = load_checkpoint(folder / "checkpoint")
    assert saved is not None
    server = ServerState(run.server.theta)
    run.checkpointer.restore(saved, server)
    assert server.numbers == run.server.numbers
    assert (server.anchor is None) == (run.server.anchor is None)
    assert server.anchor is None or torch.equal(server.anchor, run.server.anchor)
    pairs = ((getattr(state, part) for state in (server, run.server)) for part in ("models", "per_weight", "tensors"))
    for read, kept in pairs:
        assert read.keys() == kept.keys()
        assert all(torch.equal(read[key], kept[key]) for key in kept)


POLICIES = ("average", "mean-only", "local")
OPTIMIZERS: list[dict[str, Any]] = [{"optimizer": "adamw", "client_lr": 0.01}, {"momentum": 0.9}, {"weight_decay": 0.1}]


def learns_images(folder: Path, name: str, **settings: Any) -> None:
    result = learn(folder, name, images(), **IMAGE_MODEL, **settings, rounds=6, partition="iid")
    assert result.refused_updates == 0
    assert all(0 <= accuracy <= 1 for row in result.matrix for accuracy in row)
    assert result.matrix[0][0] > 0.6


@pytest.mark.parametrize(
    ("name", "policy", "settings"),
    [(name, POLICIES[at % 3], OPTIMIZERS[at % 3]) for at, name in enumerate(methods.names())],
)
def test_a_method_learns_with_a_batch_norm_policy_and_an_optimizer(
    name: str, policy: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Each method with one of each, in turn; `make test-slow` runs it with all policies and all optimizers."""
    learns_images(tmp_path / "run", name, batch_norm=policy, **settings)


@pytest.mark.slow
@every_method
@pytest.mark.parametrize("policy", POLICIES)
def test_a_method_learns_with_every_batch_norm_policy(name: str, policy: str, tmp_path: Path) -> None:
    learns_images(tmp_path / "run", name, batch_norm=policy)


@pytest.mark.slow
@every_method
@pytest.mark.parametrize("settings", OPTIMIZERS)
def test_a_method_learns_with_every_optimizer(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    # Without a federation every client has only its own few samples.
    threshold = 0.55 if name == "local" else 0.6
    assert learn(tmp_path / "run", name, **settings, rounds=6, partition="iid").matrix[0][0] > threshold


@every_method
def test_a_run_that_diverges_ends_and_says_so(name: str, tmp_path: Path) -> None:
    """Loss and weights become infinite or NaN at some clients, and very large at others."""
    result = learn(tmp_path / "run", name, client_lr=1e4, rounds=2, eval_every=0)
    events = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "round")
    assert all(0 <= accuracy <= 1 for row in result.matrix for accuracy in row)
    assert all(math.isfinite(event["loss"]) for event in events if not event["held"])
    assert result.warnings


@every_method
def test_a_method_object_has_frozen_hyperparameters_and_nothing_else(name: str) -> None:
    method = methods.find(name)()
    fields = [field.name for field in dataclasses.fields(method)]
    assert set(vars(method)) - set(fields) <= {"__pydantic_initialised__"}
    for field in fields:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, field, 1)


@every_method
def test_clients_without_data_or_with_one_class_do_not_stop_a_run(name: str, tmp_path: Path) -> None:
    run = prepared_run(tmp_path / "run", name, clients=3, clients_per_round=3)
    labels = run.federation.domain(1).train.y
    rows = [[], torch.nonzero(labels == 0).flatten().tolist(), list(range(10))]
    run.federation.rows = lambda task, client: torch.tensor(rows[client], dtype=torch.int64).numpy()  # type: ignore[method-assign]
    play(run)
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert {event["reason"] for event in events if event["event"] == "update_refused"} == {
        "it holds no samples of this task"
    }
    assert all(event["num_accepted"] == 2 for event in events if event["event"] == "round")
    assert bool(torch.isfinite(run.vector).all())


@every_method
def test_the_client_states_are_restored_from_bytes(name: str, played: Callable[[str], tuple[Run, Path]]) -> None:
    run, _ = played(name)
    for client in run.engine.states.index:  # type: ignore[attr-defined]
        state = run.engine.states.load(client)  # type: ignore[attr-defined]
        again = ClientState.from_bytes(state.to_bytes())
        assert (again.numbers, again.outputs) == (state.numbers, state.outputs)
        for read, kept in ((again.models, state.models), (again.tensors, state.tensors)):
            assert read.keys() == kept.keys()
            assert all(torch.equal(read[key], kept[key]) for key in kept)


@every_federated_method
def test_costs_are_measured(
    name: str, learned: Callable[[str], Learned], fedavg_on_the_problem_for: Callable[[str], Learned]
) -> None:
    result = learned(name).result
    rounds = of_kind(learned(name).events, "round")
    assert all(r["bytes_up"] > 0 and 0 <= r["bytes_once"] < r["bytes_down"] for r in rounds)
    assert result.client_memory_bytes > result.client_memory_paper_bytes > 0
    fedavg = fedavg_on_the_problem_for(name).result
    assert result.bytes_down >= fedavg.bytes_down
    assert result.client_memory_paper_bytes >= fedavg.client_memory_paper_bytes


def test_every_method_learns_a_different_model(tmp_path: Path) -> None:
    """From the second task on, where the methods begin to differ, no two of them have the same model."""
    shas = {
        name: learn_in(
            tmp_path / name, name, images(), model="cnn", width=4,
            rounds=1, **{k: v for k, v in problem_for(name)[1].items() if k not in ("model", "width")},
        ).model_sha256
        for name in FEDERATED
    }  # fmt: skip
    assert len(set(shas.values())) == len(shas), shas


def runs_on_workers(name: str) -> Any:
    """`make test` runs three methods on worker processes: one with an anchor, one with client states and queries, and a
    personal one. `make test-slow` runs the others."""
    return pytest.param(name, marks=[] if name in ("special", "srfdil", "pfeddil") else [pytest.mark.slow])


@pytest.mark.parametrize("name", [runs_on_workers(name) for name in methods.names()])
def test_worker_processes_give_the_same_run(name: str, learned: Callable[[str], Learned], tmp_path: Path) -> None:
    """Bit for bit the same model, and the same events, costs and checkpoint, apart from times."""
    in_process = learned(name)
    in_workers = learn(tmp_path / "in_workers", name, workers=2)
    assert in_workers.model_sha256 == in_process.result.model_sha256
    assert without_times(tmp_path / "in_workers") == in_process.events
    blobs = [
        {path.name for path in (folder / "checkpoint/blobs").iterdir()}
        for folder in (tmp_path / "in_workers", in_process.folder)
    ]
    assert blobs[0] == blobs[1]
