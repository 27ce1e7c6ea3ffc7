"""Laws of SR-FDIL: which samples are cached, how samples and clients are chosen, and that replay reduces forgetting."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedspecial
from fedspecial import Benchmark, Domain, InputError, resume
from fedspecial.core.events import of_kind, read_events
from fedspecial.core.messages import ServerState
from fedspecial.core.vector import FlatModel
from fedspecial.engine.run import Run
from fedspecial.methods.base import LocalData, QueryResult
from fedspecial.methods.srfdil import SrFdil, _check_importance
from fedspecial.methods.srfdil_cache import (
    Pool,
    best_of_each,
    class_means,
    gradient_importance,
    last_layer_norms,
    prototype_scores,
    quotas,
    scaled,
)
from fedspecial.models import build
from toy_problems import begin, images, learn, play, rotated_blobs

MIB = 2**20
CNN: dict[str, Any] = {"model": "cnn", "width": 4}


def caches(run: Run) -> list[dict[str, Tensor]]:
    states = [run.engine.states.load(client) for client in range(run.federation.clients)]  # type: ignore[attr-defined]
    return [{n.removeprefix("cache/"): t for n, t in state.tensors.items()} for state in states]


def rows_of(x: Tensor) -> list[bytes]:
    return [row.numpy().tobytes() for row in x]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- the choice of samples ---------------------------------------------------------------------------------------


@given(st.integers(0, 60), st.lists(st.integers(0, 20), max_size=7))
def test_quotas_are_as_even_as_sizes_allow(budget: int, sizes: list[int]) -> None:
    given = quotas(budget, sizes)
    assert sum(given) == min(budget, sum(sizes))
    assert all(0 <= quota <= size for quota, size in zip(given, sizes, strict=True))
    not_exhausted = [quota for quota, size in zip(given, sizes, strict=True) if quota < size]
    if not_exhausted:
        assert max(given) - min(not_exhausted) <= 1
        assert not_exhausted == sorted(not_exhausted, reverse=True), "the first ones get the remainder"


def test_the_best_of_each_domain_and_class_are_kept() -> None:
    y = torch.tensor([0, 0, 0, 1, 1, 0, 0, 1, 1, 1])
    domain = torch.tensor([1, 1, 1, 1, 1, 2, 2, 2, 2, 2])
    scores = torch.tensor([0.1, 0.9, 0.5, 0.2, 0.2, 0.3, 0.4, 0.1, 0.8, 0.8])
    pool = Pool(torch.arange(10)[:, None], y, domain)
    assert best_of_each(scores, pool, 4).tolist() == [1, 3, 6, 8]  # of equal scores the first
    assert best_of_each(scores, pool, 10).tolist() == list(range(10))
    assert best_of_each(scores, pool, 0).tolist() == []


def test_scores_are_cosines_with_the_class_means_scaled_and_mixed() -> None:
    h, shared = torch.nn.functional.normalize(normal(12, 4)), normal(2, 3, 4, seed=1)
    pool = Pool(torch.zeros(12, 1), torch.arange(12) % 3, 1 + torch.arange(12) // 6)
    own, counts = class_means(h, pool, 2, 3)
    assert counts.tolist() == [[2, 2, 2], [2, 2, 2]]
    cosines: list[list[float]] = [[], []]
    for i in range(12):
        members = [j for j in range(12) if j % 3 == i % 3 and j // 6 == i // 6]
        for kind, mean in enumerate((h[members].mean(0), shared[i // 6, i % 3])):
            cosines[kind].append(float(h[i] @ mean / mean.norm()))
    s_rep, s_col = (np.interp(part, (min(part), max(part)), (0, 1)) for part in cosines)
    for lam in (0.0, 0.3, 1.0):
        scores = prototype_scores(h, pool, own, shared, lam)
        assert scores.numpy() == pytest.approx(lam * s_rep + (1 - lam) * s_col, abs=1e-5)


def test_equal_scores_are_scaled_to_one_half() -> None:
    assert scaled(torch.full((3,), 7.0)).tolist() == [0.5, 0.5, 0.5]


def test_the_last_layers_gradient_norm_is_the_true_one() -> None:
    layer, h, y = nn.Linear(5, 3), normal(6, 5), torch.arange(6) % 3
    norms = last_layer_norms(h, layer(h).detach(), y)
    for i in range(6):
        gradients = torch.autograd.grad(cross_entropy(layer(h[i : i + 1]), y[i : i + 1]), list(layer.parameters()))
        assert norms[i].item() == pytest.approx(sum(g.square().sum().item() for g in gradients) ** 0.5, rel=1e-5)


@pytest.mark.parametrize(("lam", "moves"), [(0.0, False), (0.5, True), (1.0, True)])
def test_refeds_personal_model_leaves_the_global_one_unless_lambda_is_zero(lam: float, moves: bool) -> None:
    model = FlatModel(build("mlp", input_shape=(4,), num_classes=3, width=8))
    x, y = normal(40, 4), torch.arange(40) % 3
    data = LocalData(x, y, np.arange(40), lambda part: part, torch.device("cpu"))
    pool, theta = Pool(x, y, torch.ones(40, dtype=torch.int64)), model.vector.clone()
    with torch.no_grad():
        h = model.module.features(x)  # type: ignore[operator]
        at_theta = last_layer_norms(h, model.module(x), y)
    how = {"lr": 0.1, "passes": 3, "rng": np.random.default_rng(0)}
    importance = gradient_importance(model, data, pool, lam, **how)
    assert torch.equal(model.vector, theta) != moves
    if not moves:
        assert torch.allclose(importance, at_theta * (1 + 1 / 2 + 1 / 3), rtol=1e-5)


# --- complete runs -----------------------------------------------------------------------------------------------


def test_without_a_cache_it_is_fedavg_and_stores_nothing(tmp_path: Path) -> None:
    run = play(begin(tmp_path / "ours", "srfdil", images(), cache=0, **CNN))
    assert torch.equal(run.vector, play(begin(tmp_path / "fedavg", "fedavg", images(), **CNN)).vector)
    assert caches(run) == [{}] * 4
    assert not of_kind(read_events(tmp_path / "ours" / "events.jsonl"), "query")


def test_the_first_task_is_fedavg(tmp_path: Path) -> None:
    ends = []
    for name in ("srfdil", "fedavg"):
        run = begin(tmp_path / name, name)
        models: list[Tensor] = []
        run.listeners = (lambda e: models.append(run.vector.clone()) if e.event == "task_finished" else None,)  # noqa: B023
        play(run)
        ends.append(models)
    assert torch.equal(ends[0][0], ends[1][0])
    assert not torch.equal(ends[0][1], ends[1][1])


@pytest.mark.parametrize("scores", ["prototypes", "refed"])
@pytest.mark.parametrize("problem", [images(tasks=3), rotated_blobs()], ids=["images", "table"])
def test_a_cache_contains_some_of_the_clients_earlier_samples(scores: str, problem: Benchmark, tmp_path: Path) -> None:
    settings = CNN if problem.kind == "image" else {}
    run = begin(tmp_path / "run", "srfdil", problem, cache=9, scores=scores, **settings)
    own = {(t, c): set(run.federation.rows(t, c).tolist()) for t in (1, 2, 3) for c in range(4)}
    play(run)
    for client, kept in enumerate(caches(run)):
        assert len(kept["x"]) == len(kept["y"]) == len(kept["domain"]) == 9
        assert kept["x"].dtype == problem.domains[0].train.x.dtype
        assert len(set(rows_of(kept["x"]))) == 9
        for x, y, domain in zip(rows_of(kept["x"]), kept["y"].tolist(), kept["domain"].tolist(), strict=True):
            train = problem.domains[domain - 1].train
            at = rows_of(train.x).index(x)
            assert at in own[domain, client]
            assert int(train.y[at]) == y


def test_a_cache_is_split_evenly_over_domains(tmp_path: Path) -> None:
    run = play(begin(tmp_path / "run", "srfdil", rotated_blobs(tasks=4), cache=11, min_per_client=8))
    for kept in caches(run):
        assert torch.bincount(kept["domain"])[1:].tolist() == [3, 3, 3, 2]


def test_an_unlimited_cache_is_cumulative_training(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "srfdil", cache=1000, clients_per_round=4)
    own = {(t, c): run.federation.rows(t, c) for t in (1, 2, 3) for c in range(4)}
    play(run)
    for client, kept in enumerate(caches(run)):
        samples = [run.federation.domain(t).train.x[torch.from_numpy(own[t, client])] for t in (1, 2, 3)]
        assert sorted(rows_of(kept["x"])) == sorted(row for x in samples for row in rows_of(x))
    rounds = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "round")
    assert [entry["samples"] for entry in rounds] == 3 * [96] + 3 * [192] + 3 * [288]


def test_clients_that_never_trained_have_a_cache_too(tmp_path: Path) -> None:
    run = play(begin(tmp_path / "run", "srfdil", rotated_blobs(tasks=2), rounds=1, clients_per_round=1))
    assert all(len(kept["y"]) > 0 for kept in caches(run))


def test_classes_that_a_client_never_had_are_not_cached(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "srfdil", cache=8, clients=3, clients_per_round=3)
    labels = run.federation.domain(1).train.y
    rows = [np.empty(0, dtype=np.int64), torch.nonzero(labels == 2).flatten().numpy(), np.arange(20)]
    run.federation.rows = lambda task, client: rows[client]  # type: ignore[method-assign]
    play(run)
    nothing, only, several = caches(run)
    assert len(nothing["y"]) == 0
    assert only["y"].tolist() == [2] * 8
    assert sorted(set(several["y"].tolist())) == [0, 1, 2]


@pytest.mark.parametrize(("lam", "others_matter"), [(1.0, False), (0.5, True), (0.0, True)])
def test_at_lambda_one_other_clients_do_not_matter(
    lam: float, others_matter: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept() -> dict[str, Tensor]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        return caches(play(begin(folder, "srfdil", rotated_blobs(tasks=2), cache=6, lam=lam)))[1]

    before, answer_query = kept(), SrFdil.answer_query

    def changed(self: SrFdil, context: Any, query: str) -> QueryResult:
        result = answer_query(self, context, query)
        if query == "means" and context.client == 2:
            result.tensors["means"] = 50 * result.tensors["means"].flip(-1)
        return result

    monkeypatch.setattr(SrFdil, "answer_query", changed)
    assert torch.equal(kept()["x"], before["x"]) != others_matter


def test_where_all_means_agree_lambda_does_not_matter(tmp_path: Path) -> None:
    """The federation has one client."""
    settings = {"clients": 1, "clients_per_round": 1, "cache": 7}
    kept = [caches(play(begin(tmp_path / f"{lam}", "srfdil", lam=lam, **settings)))[0] for lam in (0.0, 1.0)]
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in ("x", "y", "domain", "score"))


@pytest.mark.parametrize("policy", ["average", "mean-only", "local"])
@pytest.mark.parametrize(
    "settings", [{}, {"scores": "refed"}, {"choice": "importance"}], ids=["own", "refed", "choice"]
)
def test_caches_work_with_growing_heads(settings: dict[str, Any], policy: str, tmp_path: Path) -> None:
    tasks = images(tasks=3).domains
    pairs = [(domain.train.x, domain.train.y + 2 * number) for number, domain in enumerate(tasks)]
    domains = tuple(Domain.of(f"t{number}", pair, pair) for number, pair in enumerate(pairs, start=1))
    problem = Benchmark("grows", domains, tuple("abcdef"), incremental="class")
    settings = {**CNN, **settings, "partition": "iid", "batch_norm": policy, "cache": 8, "rounds": 2}
    run = play(begin(tmp_path / "run", "srfdil", problem, **settings))
    assert all(len(kept["y"]) == 8 and 2 <= kept["y"].max() < 6 for kept in caches(run))
    assert not of_kind(read_events(tmp_path / "run" / "events.jsonl"), "update_refused")


@pytest.mark.parametrize(
    "settings", [{}, {"scores": "refed"}, {"choice": "importance"}], ids=["own", "refed", "choice"]
)
@pytest.mark.parametrize("stage", ["first", "last"])
def test_a_run_stopped_at_a_task_boundary_resumes_to_the_same_result(
    settings: dict[str, Any], stage: str, tmp_path: Path
) -> None:
    settings = {**settings, "cache": 6}
    uninterrupted = learn(tmp_path / "uninterrupted", "srfdil", **settings)
    queries = []

    def stop(event: Any) -> None:
        if event.event == "query" and event.task == 2:
            queries.append(event.query)
            if stage == "first" or event.query in ("cache", "refed"):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "stopped", "srfdil", listeners=[stop], **settings)
    assert queries
    assert resume(tmp_path / "stopped", benchmark=rotated_blobs()).model_sha256 == uninterrupted.model_sha256


# --- the choice of clients ---------------------------------------------------------------------------------------


def chosen(weights: list[float], count: int, rounds: int = 1) -> list[list[int]]:
    server = ServerState(torch.zeros(1), tensors={"importance": torch.tensor(weights, dtype=torch.float64)})
    method = SrFdil(choice="importance")
    return [method.sample_clients(server, 25, 2, round, len(weights), count) for round in range(rounds)]


def test_clients_are_drawn_in_proportion_to_their_importance() -> None:
    drawn = [client for (client,) in chosen([3.0, 0.0, 1.0], 1, rounds=4000)]
    assert drawn.count(0) / 4000 == pytest.approx(0.75, abs=0.03)
    assert drawn.count(1) == 0


def test_clients_of_no_importance_fill_up_the_round() -> None:
    assert all(0 in clients and len(set(clients)) == 3 for clients in chosen([1.0, 0.0, 0.0, 0.0], 3, rounds=20))
    assert len({tuple(clients) for clients in chosen([0.0] * 4, 2, rounds=60)}) == 6


@pytest.mark.parametrize(
    ("sent", "usable"),
    [
        ({"score": 0.5, "loss": 2.0}, True),
        ({}, True),  # a client without new samples
        ({"score": 0.5}, False),
        ({"score": 0.5, "loss": 2.0, "more": 1.0}, False),
        ({"score": 0.5, "loss": float("nan")}, False),
    ],
)
def test_a_client_reports_a_score_and_a_loss_or_nothing(sent: dict[str, float], usable: bool) -> None:
    assert (_check_importance(0, QueryResult({}, sent)) is None) == usable


def test_importance_is_queried_at_the_start_of_later_tasks(tmp_path: Path) -> None:
    learn(tmp_path / "ours", "srfdil", choice="importance", cache=6, clients_per_round=2)
    learn(tmp_path / "uniform", "srfdil", cache=6, clients_per_round=2)
    ours, uniform = (read_events(tmp_path / name / "events.jsonl") for name in ("ours", "uniform"))
    queries = [(event["task"], event["query"]) for event in of_kind(ours, "query")]
    choices = [(task, query) for task in (1, 2, 3) for query in ("importance", "means", "cache")]
    assert queries == choices[1:]  # in the first task all clients are alike
    clients = [[entry["clients"] for entry in of_kind(events, "round")] for events in (ours, uniform)]
    assert clients[0][:3] == clients[1][:3], "in the first task there is no importance yet"
    assert clients[0] != clients[1]


# --- refusals and costs ------------------------------------------------------------------------------------------


class NoFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(x)
        return scores


def test_texts_and_models_without_features_are_refused_in_one_line(tmp_path: Path) -> None:
    tokens = torch.randint(1, 50, (32, 6), generator=torch.Generator().manual_seed(0))
    pair = (tokens, torch.arange(32) % 2)
    texts = Benchmark("texts", (Domain.of("t", pair, pair),), ("good", "bad"), kind="text")
    with pytest.raises(InputError, match=r"method=srfdil: .* not text data") as caught:
        learn(tmp_path / "a", "srfdil", texts, model="text")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"method=srfdil: .* no `features`") as caught:
        begin(tmp_path / "b", "srfdil", module=NoFeatures())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "settings", [{"cache": -1}, {"lam": 1.5}, {"scores": "best"}, {"choice": "mine"}, {"passes": 0}]
)
def test_settings_out_of_range_are_refused_in_one_line(settings: dict[str, Any], tmp_path: Path) -> None:
    (name, value) = next(iter(settings.items()))
    with pytest.raises(InputError, match=f"{name}={value}: ") as caught:
        learn(tmp_path / "run", "srfdil", **settings)
    assert "\n" not in str(caught.value)


def test_a_clients_memory_is_that_of_the_paper(tmp_path: Path) -> None:
    problem = replace(images(rows=8, size=32), classes=tuple("0123456789"))
    settings = {"model": "resnet18", "width": 64, "local_steps": 1, "local_epochs": None}
    result = learn(tmp_path / "run", "srfdil", problem, rounds=1, clients=1, clients_per_round=1, **settings)
    assert result.client_memory_paper_bytes == pytest.approx(55.82 * MIB, rel=0.01)


def test_a_round_costs_fedavgs_bytes_and_a_task_boundary_one_model_and_the_means(tmp_path: Path) -> None:
    ours, fedavg = learn(tmp_path / "ours", "srfdil"), learn(tmp_path / "fedavg")
    assert (ours.bytes_up, ours.bytes_down) == (fedavg.bytes_up, fedavg.bytes_down)
    queries = of_kind(read_events(tmp_path / "ours" / "events.jsonl"), "query")
    assert [entry["query"] for entry in queries] == ["means", "cache"] * 3
    for means, cache in pairwise(queries):
        if means["query"] == "means":
            floats = means["task"] * 3 * 8  # domains so far × classes × features
            assert means["bytes_down"] / 4 == pytest.approx(fedavg.bytes_down, abs=100)
            assert means["bytes_up"] / 4 == pytest.approx(4 * floats + 8 * floats / 8, abs=200)
            assert cache["bytes_down"] / 4 == pytest.approx(4 * floats, abs=250)
            assert cache["bytes_up"] / 4 < 100


@pytest.mark.slow
@pytest.mark.parametrize("scores", ["prototypes", "refed"])
@pytest.mark.parametrize("seed", [25, 225, 2025])
def test_replay_forgets_less_than_none(seed: int, scores: str, tmp_path: Path) -> None:
    """At least ten points of BWT on three domains of digits-shift."""
    settings = {"seed": seed, "domains": "paper,neon,photo", "rounds": 4, "local_epochs": 3, "eval_every": 0}
    ours = fedspecial.run("digits-shift", method="srfdil", scores=scores, out=tmp_path / "ours", **settings)
    fedavg = fedspecial.run("digits-shift", method="fedavg", out=tmp_path / "fedavg", **settings)
    assert ours.bwt >= fedavg.bwt + 0.10
