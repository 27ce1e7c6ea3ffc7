"""SR-FDIL (Li et al., 2024): each client replays a few of its own samples, chosen with the help of all clients.

When a task ends, client m scores P = cache ∪ D_{i,m} under θ_i and keeps the best `cache` samples:

    S(x) = λ·s_rep(x) + (1 − λ)·s_col(x) ,     s_rep = cos(h(x), μ_{m,d,y}) ,     s_col = cos(h(x), μ_{d,y})

h: `module.features`, of length one · μ_{m,d,y}: the client's mean of h over class y of domain d · μ_{d,y}: the mean of
these over clients, weighted by their counts · λ: `lam`. Both scores are scaled to [0, 1] within the client. The cache
is divided evenly among the domains seen and, in a domain, among its classes. In later tasks a client trains on its new
samples together with its cache. The server step is FedAvg's, and so is the first task.

The original's text and code are not public: the abstract names two scores and a choice of clients, the rest is
inferred. The means of all cached domains are recomputed, since features of different models cannot be compared.

    scores=refed        the same group's Re-Fed instead: keep what moves a personal model most, without quotas
    choice=importance   clients are drawn by (mean S of the cache) + (mean loss of the new data) instead of uniformly
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedspecial.core.messages import Broadcast, ServerState, Tensors
from fedspecial.core.streams import stream
from fedspecial.errors import InputError
from fedspecial.methods.base import ClientContext, Exchange, Method, ProblemSpec, Query, QueryResult, ServerContext
from fedspecial.methods.srfdil_cache import (
    Pool,
    best,
    best_of_each,
    class_means,
    features,
    gradient_importance,
    prototype_scores,
    scaled,
)


@dataclass(frozen=True)
class SrFdil(Method):
    """Replay a few samples that each client keeps, chosen by how typical they are for the client and all clients.

    S(x) = λ·cos(h(x), μ_{m,d,y}) + (1 − λ)·cos(h(x), μ_{d,y})

    Args:
        cache: Samples that a client keeps, ≥ 0; FedAvg at 0.
        lam: Weight λ of the client's own class means, in [0, 1]; the rest is for the means over all clients.
        scores: "prototypes": the scores above; "refed": the gradient norms of Re-Fed.
        choice: "uniform": clients are sampled uniformly; "importance": by the scores and losses that they report.
        passes: Passes over the data of Re-Fed's personal model, ≥ 1.
        personal_lr: Learning rate of Re-Fed's personal model, > 0.

    Example:
        ``fedspecial.run("digits-shift", method=SrFdil(cache=100))``

    Reference:
        Li et al., SR-FDIL: Synergistic Replay for Federated Domain-Incremental Learning, IEEE TPDS 2024.
    """

    name: ClassVar[str] = "srfdil"
    needs_class_scores: ClassVar[bool] = True
    fedavg_when: ClassVar = {"cache": 0}
    kinds: ClassVar[tuple[str, ...]] = ("image", "table")
    # The paper's table counts the images; labels and scores are small.
    memory_excluded: ClassVar = frozenset({"state/cache/y", "state/cache/domain", "state/cache/score"})

    cache: Annotated[int, Field(ge=0, description="samples that a client keeps; 0 is FedAvg")] = 1120
    lam: Annotated[
        float, Field(ge=0, le=1, allow_inf_nan=False, description="weight of the client's own class means")
    ] = 0.5
    scores: Annotated[Literal["prototypes", "refed"], Field(description="how samples are scored")] = "prototypes"
    choice: Annotated[Literal["uniform", "importance"], Field(description="how clients are sampled")] = "uniform"
    passes: Annotated[int, Field(ge=1, description="passes of Re-Fed's personal model")] = 3
    personal_lr: Annotated[
        float, Field(gt=0, allow_inf_nan=False, description="learning rate of Re-Fed's personal model")
    ] = 0.01

    def check_problem(self, problem: ProblemSpec) -> None:
        super().check_problem(problem)
        if problem.features is None:
            raise InputError("method=srfdil: samples are scored by their features, but the model has no `features`")

    # --- server half ------------------------------------------------------------------------------------------

    def begin_task(self, server: ServerState, context: ServerContext) -> Exchange:
        """With ``choice=importance``, query each client for the mean score of its cache and its loss on new data."""
        if self.choice == "uniform" or context.task == 1:
            return
        message = Broadcast(context.task, 0, {"theta": server.theta})
        results = yield Query("importance", lambda client: message, check=_check_importance)
        reported = {client: result.numbers for client, result in results.items() if result.numbers}
        clients = torch.tensor(sorted(reported), dtype=torch.int64)
        importance = torch.zeros(context.problem.clients, dtype=torch.float64)
        for name in ("score", "loss"):
            values = torch.tensor([reported[int(client)][name] for client in clients], dtype=torch.float64)
            importance[clients] += scaled(values)
        server.tensors["importance"] = importance

    def sample_clients(
        self, server: ServerState, seed: int, task: int, round: int, clients: int, count: int
    ) -> list[int]:
        """Uniformly, or one after another with probabilities in proportion to their importance."""
        if "importance" not in server.tensors:
            return super().sample_clients(server, seed, task, round, clients, count)
        weights = server.tensors["importance"].numpy()
        if len(weights) < clients:  # sites that joined since the task began count like the mean of the others
            weights = np.pad(weights, (0, clients - len(weights)), constant_values=weights.mean())
        # The first of independent exponential waiting times with these rates; a rate of zero comes last.
        waits = stream(seed, "importance", task, round).exponential(size=clients)
        arrivals = np.divide(waits, weights, out=np.full(clients, np.inf), where=weights > 0)
        return sorted(int(client) for client in np.lexsort((waits, arrivals))[:count])

    def end_task(self, server: ServerState, context: ServerContext) -> Exchange:
        if self.cache == 0:
            return
        if self.scores == "refed":
            yield Query("refed", lambda client: Broadcast(context.task, 0, {"theta": server.theta}))
            return
        groups = (context.task, context.num_classes)
        shapes = {"means": (*groups, context.problem.features), "counts": groups}

        def check(client: int, result: QueryResult) -> str | None:
            sent = {name: tuple(tensor.shape) for name, tensor in result.tensors.items()}
            return None if sent == shapes else f"it sent {sent} instead of {shapes}"

        results = yield Query("means", lambda client: Broadcast(context.task, 0, {"theta": server.theta}), check=check)
        if results:
            clients = sorted(results)
            shared = _weighted_mean([results[client].tensors for client in clients])
            yield Query("cache", lambda client: Broadcast(context.task, 0, {"means": shared}), clients)

    # --- client half ------------------------------------------------------------------------------------------

    def answer_query(self, context: ClientContext, query: str) -> QueryResult:
        if query == "importance":
            return _importance(context)
        pool = _pool(context)
        if query == "means":
            # Stored until the global means arrive, so that samples pass through the network only once.
            h = context.state.tensors["features"] = features(context.model.module, context.data, pool)
            means, counts = class_means(h, pool, context.broadcast.task, context.num_classes)
            return QueryResult({"means": means, "counts": counts})
        if query == "cache":
            h = context.state.tensors.pop("features")
            own, _ = class_means(h, pool, context.broadcast.task, context.num_classes)
            scores = prototype_scores(h, pool, own, context.broadcast.vectors["means"], self.lam)
            self._keep(context, pool, scores, best_of_each(scores, pool, self.cache))
            return QueryResult()
        assert query == "refed"
        scores = gradient_importance(
            context.model, context.data, pool, self.lam, lr=self.personal_lr, passes=self.passes, rng=context.rng
        )
        self._keep(context, pool, scores, best(scores, self.cache).sort().values)
        return QueryResult()

    def _keep(self, context: ClientContext, pool: Pool, scores: Tensor, rows: Tensor) -> None:
        kept = pool.take(rows)
        named = {"x": kept.x, "y": kept.y, "domain": kept.domain, "score": scores[rows]}
        context.state.tensors |= {f"cache/{name}": tensor for name, tensor in named.items()}
        context.state.numbers["cache/x/capacity"] = self.cache

    def replay(self, context: ClientContext) -> tuple[Tensor, Tensor] | None:
        kept = context.state.tensors
        return (kept["cache/x"], kept["cache/y"]) if len(kept.get("cache/y", ())) else None


def _pool(context: ClientContext) -> Pool:
    data, kept = context.data, context.state.tensors
    rows = torch.from_numpy(data.rows)
    new = Pool(data.x.index_select(0, rows), data.labels, torch.full((len(data),), context.broadcast.task))
    if "cache/x" not in kept:
        return new
    old = Pool(kept["cache/x"], kept["cache/y"], kept["cache/domain"])
    return Pool(*(torch.cat(both) for both in zip(old, new, strict=True)))


def _weighted_mean(results: list[Tensors]) -> Tensor:
    """μ_{d,y} = Σ_m n_{m,d,y}·μ_{m,d,y} / Σ_m n_{m,d,y}; zero where no client has that class."""
    counts = torch.stack([result["counts"] for result in results]).double()[..., None]
    sums = (torch.stack([result["means"] for result in results]).double() * counts).sum(0)
    return (sums / counts.sum(0).clamp(min=1)).float()


def _check_importance(client: int, result: QueryResult) -> str | None:
    """A result has two numbers, or none from a client without new samples."""
    sent = result.numbers
    if sent and (set(sent) != {"score", "loss"} or not all(map(math.isfinite, sent.values()))):
        return f"it sent {sent} instead of a score and a loss"
    return None


@torch.inference_mode()
def _importance(context: ClientContext) -> QueryResult:
    """Mean score and loss; nothing from a client without new samples, since it cannot train."""
    if len(context.data) == 0:
        return QueryResult()
    total = sum(float(cross_entropy(context.model(x), y, reduction="sum")) for x, y in context.data.batches())
    score = context.state.tensors.get("cache/score", torch.empty(0))
    return QueryResult({}, {"score": float(score.mean()) if len(score) else 0.0, "loss": total / len(context.data)})
