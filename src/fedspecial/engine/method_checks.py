"""What a method's hooks leave behind and return, checked where it is first used.

A method of one's own breaks these rules easily, and without the checks a run would go on with a model that is not the
one that is saved, or fail much later in a place that does not name the method.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedspecial.core.messages import Broadcast, ClientState, ServerState
from fedspecial.errors import InputError
from fedspecial.methods.base import ClientContext, Exchange, Method, Query, QueryResult, StepReport


def check_server_state(method: Method, hook: str, server: ServerState, vector: Tensor) -> None:
    """Refuse a replaced `server.theta`, an anchor of another length, and state that cannot be saved.

    vector: the complete model, of which `server.theta` is the first part
    """
    where = f"method={method.name}: {hook}"
    if not isinstance(server.theta, Tensor) or server.theta.data_ptr() != vector.data_ptr():
        raise InputError(
            f"{where} replaced server.theta, which is a part of the model in memory; change it in place, such as "
            "server.theta.copy_(…) or server.theta.add_(…)"
        )
    if server.anchor is not None and server.anchor.shape != server.theta.shape:
        raise InputError(
            f"{where} left server.anchor with {server.anchor.numel()} values; it needs the {server.theta.numel()} of "
            "server.theta"
        )
    for kind in ("models", "per_weight", "tensors"):
        _check_tensors(where, f"server.{kind}", getattr(server, kind))
    _check_numbers(where, "server.numbers", server.numbers)


def check_client_state(method: Method, hook: str, state: ClientState) -> None:
    """Refuse what cannot be saved with a client's state."""
    where = f"method={method.name}: {hook}"
    for kind in ("models", "tensors"):
        _check_tensors(where, f"context.state.{kind}", getattr(state, kind))
    _check_numbers(where, "context.state.numbers", state.numbers)


def check_uploads(method: Method, context: ClientContext) -> None:
    """Refuse what cannot be sent with an update."""
    where = f"method={method.name}: its client half"
    _check_tensors(where, "context.uploads", context.uploads)
    _check_numbers(where, "context.numbers", context.numbers)


def check_answer(method: Method, result: Any) -> QueryResult:
    """The answer of a client to a query."""
    where = f"method={method.name}: answer_query"
    if not isinstance(result, QueryResult):
        raise InputError(f"{where} returned {type(result).__name__}, expected a QueryResult")
    _check_tensors(where, "QueryResult.tensors", result.tensors)
    _check_numbers(where, "QueryResult.numbers", result.numbers)
    return result


def check_broadcast(method: Method, message: Any) -> None:
    """Refuse a message to a client that is none."""
    if not isinstance(message, Broadcast):
        raise InputError(
            f"method={method.name}: a message to a client is {type(message).__name__}, expected a Broadcast (of "
            "broadcast, eval_broadcast, or the message of a Query)"
        )


def check_vectors(method: Method, message: Broadcast, trained: Collection[str]) -> None:
    """Refuse vectors of a broadcast that no network is loaded with: a client cannot say how they changed."""
    for name in message.vectors:
        if name not in trained:
            raise InputError(
                f"method={method.name}: its broadcast has the vector '{name}', but no network of that name is trained; "
                "put tensors that clients only read into payloads"
            )


def check_report(method: Method, report: Any) -> StepReport:
    """The report of a server step; its numbers go into the event log."""
    where = f"method={method.name}: server_step"
    if not isinstance(report, StepReport):
        raise InputError(
            f"{where} returned {type(report).__name__}, expected a StepReport "
            "(return StepReport() if there is nothing to report)"
        )
    known = {key: value for key in ("lam", "mu") if (value := getattr(report, key)) is not None}
    _check_numbers(where, "StepReport.metrics", {**known, **report.metrics})
    for key, value in {**known, **report.metrics}.items():
        if not math.isfinite(value):
            raise InputError(f"{where} reported {key}={value}; leave out what is not finite")
    return report


def check_clients(method: Method, chosen: Any, clients: int) -> list[int]:
    """The clients of a round: different numbers of clients."""
    found = list(chosen) if isinstance(chosen, Sequence) else None
    whole = found is not None and all(type(client) is int and 0 <= client < clients for client in found)
    if found is None or not whole or len(set(found)) < len(found):
        raise InputError(
            f"method={method.name}: sample_clients returned {chosen}; expected a list of different clients, whole "
            f"numbers from 0 to {clients - 1}"
        )
    return found


def check_exchange(method: Method, hook: str, exchange: Any) -> Exchange | None:
    """What `begin_task` or `end_task` returned."""
    if exchange is not None and not isinstance(exchange, Generator):
        raise InputError(
            f"method={method.name}: {hook} returned {type(exchange).__name__}; it returns nothing, or yields queries"
        )
    return exchange


def check_query(method: Method, hook: str, query: Any) -> Query:
    """What such a hook yielded."""
    if not isinstance(query, Query):
        raise InputError(f"method={method.name}: {hook} yielded {type(query).__name__}, expected a Query")
    return query


def _check_tensors(where: str, place: str, named: Mapping[str, Any]) -> None:
    for name, value in named.items():
        if not isinstance(value, Tensor):
            raise InputError(f"{where}: {place}['{name}'] is {type(value).__name__}, expected a tensor")


def _check_numbers(where: str, place: str, named: Mapping[str, Any]) -> None:
    for name, value in named.items():
        if not isinstance(value, int | float):
            raise InputError(
                f"{where}: {place}['{name}'] is {type(value).__name__}, expected a number of Python, such as "
                "float(value); tensors belong in tensors, not in numbers"
            )
