"""Mistakes that are easy to make in a method of one's own are refused in one line with the method and the hook."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from pydantic.dataclasses import dataclass

import fedspecial
from fedspecial import Broadcast, InputError, Method, Query, QueryResult, StepReport
from toy_problems import QUICK, rotated_blobs


def method_with(**hooks: Any) -> Method:
    return dataclass(frozen=True)(type("Mine", (Method,), {**hooks, "__module__": __name__}))()


def run(folder: Path, method: Method, **settings: Any) -> fedspecial.Result:
    return fedspecial.run(rotated_blobs(tasks=2), model="logistic", method=method, out=folder, **{**QUICK, **settings})


def replace_theta(self: Method, server: Any, mean: Any, info: Any) -> StepReport:
    server.theta = server.theta + mean["theta"]
    return StepReport()


def report(**fields: Any) -> Any:
    def server_step(self: Method, server: Any, mean: Any, info: Any) -> StepReport:
        server.theta.add_(mean["theta"])
        return StepReport(**fields)

    return server_step


def two_vectors(self: Method, server: Any, client: int, task: int, round: int) -> Broadcast:
    return Broadcast(task, round, {"theta": server.theta, "control": server.theta})


def asks(query: Any) -> Any:
    def begin_task(self: Method, server: Any, context: Any) -> Any:
        yield query

    return begin_task


def ask_count(self: Method, server: Any, context: Any) -> Any:
    yield Query("count", lambda client: Broadcast(context.task, 0, {"theta": server.theta}))


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "theta": ({"server_step": replace_theta}, r"server_step replaced server\.theta.*in place"),
    "anchor": (
        {"begin_task": lambda self, server, context: setattr(server, "anchor", torch.zeros(3))},
        r"begin_task left server\.anchor with 3 values",
    ),
    "metric": ({"server_step": report(metrics={"gap": torch.tensor(1.0)})}, r"StepReport\.metrics\['gap'\] is Tensor"),
    "nan": ({"server_step": report(metrics={"gap": float("nan")})}, r"server_step reported gap=nan"),
    "vector": ({"broadcast": two_vectors}, r"the vector 'control'.*payloads"),
    "broadcast": ({"broadcast": lambda self, *where: None}, r"NoneType, expected a Broadcast"),
    "no such client": ({"sample_clients": lambda self, *where: [99]}, r"sample_clients returned \[99\]"),
    "the same client twice": ({"sample_clients": lambda self, *where: [1, 1]}, r"different clients"),
    "exchange": ({"begin_task": lambda self, server, context: [1]}, r"begin_task returned list"),
    "query": ({"begin_task": asks(3)}, r"begin_task yielded int, expected a Query"),
    "answer": (
        {"begin_task": ask_count, "answer_query": lambda self, context, query: {"samples": 3}},
        r"answer_query returned dict, expected a QueryResult",
    ),
    "number in an answer": (
        {"begin_task": ask_count, "answer_query": lambda self, context, query: QueryResult(numbers={"n": "3"})},  # type: ignore[dict-item]
        r"QueryResult\.numbers\['n'\] is str",
    ),
    "server number": (
        {"begin_task": lambda self, server, context: server.numbers.update(n=np.int64(3))},
        r"server\.numbers\['n'\] is int64.*number of Python",
    ),
    "server tensor": (
        {"begin_task": lambda self, server, context: server.tensors.update(m=np.zeros(3))},
        r"server\.tensors\['m'\] is ndarray, expected a tensor",
    ),
    "client number": (
        {"end_round": lambda self, context: context.state.numbers.update(seen=[1, 2])},
        r"context\.state\.numbers\['seen'\] is list",
    ),
    "uploaded number": (
        {"end_round": lambda self, context: context.numbers.update(seen="two")},
        r"context\.numbers\['seen'\] is str",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_a_method_is_refused_where_it_is_made(tmp_path: Path, mistake: str) -> None:
    hooks, message = MISTAKES[mistake]
    with pytest.raises(InputError, match=f"method=mine: .*{message}"):
        run(tmp_path / "run", method_with(**hooks))


def test_an_answer_that_is_a_generator_and_numbers_of_numpy_floats_are_accepted(tmp_path: Path) -> None:
    def answer(self: Method, context: Any, query: str) -> QueryResult:
        return QueryResult(numbers={"n": np.float64(len(context.data))})

    result = run(tmp_path / "run", method_with(begin_task=ask_count, answer_query=answer))
    assert result.model_sha256 == run(tmp_path / "fedavg", fedspecial.FedAvg()).model_sha256


class Undecorated(Method):
    """Its `strength` would not be recorded."""

    kinds: ClassVar[tuple[str, ...]] = ("table",)
    strength: float = 0.1


class OwnInit(Method):
    def __init__(self, strength: float) -> None:
        object.__setattr__(self, "strength", strength)


class Decorated(Method):
    """Only class variables and hooks: no decorator needed."""

    kinds: ClassVar[tuple[str, ...]] = ("table",)


@dataclass(frozen=True)
class NamedLikeASetting(Method):
    rounds: int = 7


@pytest.mark.parametrize("method", [Undecorated(), OwnInit(0.5)])
def test_hyperparameters_that_would_not_be_recorded_are_refused(tmp_path: Path, method: Method) -> None:
    with pytest.raises(InputError, match=r"no hyper-parameter yet.*@dataclass\(frozen=True\)"):
        run(tmp_path / "run", method)
    with pytest.raises(InputError, match=r"@dataclass\(frozen=True\)"):
        fedspecial.run("digits-shift", method=f"{__name__}:{type(method).__name__}", out=tmp_path / "named")
    assert run(tmp_path / "hooks", Decorated()).method == "decorated"


def test_a_hyperparameter_cannot_be_named_like_a_setting_of_every_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="its attribute 'rounds' is named as a setting of every run; rename it"):
        run(tmp_path / "run", NamedLikeASetting())
