"""Algorithm 1: task after task, round after round (`round.py`). Line numbers in comments are the paper's."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Literal

from fedspecial.core.events import (
    QueryFinished,
    RunFinished,
    TaskBoundary,
    TaskFinished,
    TaskStarted,
    UpdateRefused,
    read_events,
)
from fedspecial.core.stream_events import TaskDetected
from fedspecial.data.absent_classes import absent_classes
from fedspecial.engine import bank, detection, estimate
from fedspecial.engine.aggregation import server_optimizer
from fedspecial.engine.asynchronous import run_steps
from fedspecial.engine.checkpoint import Position
from fedspecial.engine.evaluate import further_metrics, main_values, majority_share
from fedspecial.engine.head import grow
from fedspecial.engine.method_checks import check_exchange, check_query, check_server_state
from fedspecial.engine.round import run_round
from fedspecial.engine.run import Run, measure, with_statistics
from fedspecial.methods.base import Method, Query, QueryResult


def learn(run: Run) -> None:
    """Run all rounds and tasks that are left."""
    first = run.position
    for task in range(first.task, run.federation.num_tasks + 1):  # line 2
        start = first.round if task == first.task else 0
        run.place = Position(task, max(0, start - 1))  # the last round, where only the end of the task is left
        if start == 0:
            _begin_task(run, task)
        if run.config.asynchronous:
            run_steps(run, task, start)
        else:
            _run_rounds(run, task, start)
        _end_task(run, task)
        run.checkpoint(Position(task + 1, 0))
    run.emit(RunFinished(run.model_sha256()))


def _run_rounds(run: Run, task: int, start: int) -> None:
    for round in range(start, run.config.rounds):  # line 4
        if run.ends_early(task, round):
            break
        run_round(run, task, round)
        if run.detects:
            _detect_task(run)
        if run.checkpointer.due():
            run.checkpoint(Position(task, round + 1))


def _begin_task(run: Run, task: int) -> None:
    grow(run, task)
    announced = task == 1 or not run.detects
    if announced:
        _renew_server(run, task)
    domain = run.federation.domain(task)
    counts = (run.federation.num_classes(task), len(domain.train))
    majority = majority_share(domain.test.y) if run.objective.counts_correct else None
    run.emit(TaskStarted(task, domain.name, *counts, majority, absent_classes(run.federation.benchmark, domain)))
    if announced:
        _call_hook(run, task, "begin_task")  # line 3: θ_i^0 = θ_{i−1}


def _renew_server(run: Run, task: int) -> None:
    """What the server itself does when a task begins, announced or detected."""
    if run.config.batch_norm == "bank" and task > 1 and len(run.statistics):
        bank.store(run.server, run.statistics, run.model.layout, run.config.bank_size)
    server_optimizer.begin_task(run.config, run.server)


def _detect_task(run: Run) -> None:
    """End the current task of the method and begin another one, if the detectors say so. Never after the last round."""
    share = detection.alarm_share(run.server, run.config, run.time)
    if _is_last_round(run) or not detection.begins_task(run.server, run.config, run.time, share):
        return
    ended = run.server.tasks_begun
    _leave_task(run, ended)
    detection.begin_task(run.server, run.time + 1)
    run.emit(TaskDetected(run.place.task, run.place.round, run.time, ended + 1, share))
    _renew_server(run, ended + 1)
    _call_hook(run, ended + 1, "begin_task")


def _is_last_round(run: Run) -> bool:
    return run.place == Position(run.federation.num_tasks, run.config.rounds - 1)


def _call_hook(run: Run, task: int, hook: Literal["begin_task", "end_task"]) -> None:
    """Let the method do its work at the start or the end of a task, and answer its queries."""
    if getattr(type(run.method), hook) is getattr(Method, hook):
        return
    began = time.perf_counter()
    # A method's vector may lack BatchNorm statistics, and the model still has those of the last client.
    run.model.load(run.vector)
    exchange = check_exchange(run.method, hook, getattr(run.method, hook)(run.server, run.context(task)))
    if exchange is not None:
        with contextlib.suppress(StopIteration):
            query = next(exchange)
            while True:
                query = exchange.send(_query_clients(run, task, check_query(run.method, hook, query)))
    check_server_state(run.method, hook, run.server, run.vector)
    run.emit(TaskBoundary(task, hook, time.perf_counter() - began))


def _query_clients(run: Run, task: int, query: Query) -> dict[int, QueryResult]:
    """The results of a query by client; a client whose result cannot be used is missing."""
    began = time.perf_counter()
    results: dict[int, QueryResult] = {}
    bytes_up = bytes_down = queried = 0
    complete = replace(query, message=lambda client: with_statistics(run, query.message(client), query=True))
    for reply in run.engine.query(complete):
        queried, bytes_up, bytes_down = queried + 1, bytes_up + reply.bytes_up, bytes_down + reply.bytes_down
        if reply.result is None:
            run.emit(UpdateRefused(task, None, reply.client, reply.problem or "it did not reply"))
        else:
            results[reply.client] = reply.result
    seconds = time.perf_counter() - began
    run.emit(QueryFinished(task, query.name, queried, len(results), bytes_up, bytes_down, seconds))
    return results


def _leave_task(run: Run, task: int) -> None:
    """The end of a task for the method, announced or detected."""
    _call_hook(run, task, "end_task")  # line 20: θ_i = θ_i^T
    if run.config.estimate:
        run.emit(estimate.at_task_end(run, task))
    if run.certify is not None:
        run.emit(run.certify(read_events(run.log.path), task))


def _end_task(run: Run, task: int) -> None:
    if not run.detects:
        _leave_task(run, task)
    elif task == run.federation.num_tasks:
        _leave_task(run, run.server.tasks_begun)
    began = time.perf_counter()
    domains, after = range(1, run.federation.num_domains + 1), run.learned_task.task
    found = measure(run, after, domains, complete=True)
    masked = None
    if run.federation.benchmark.incremental == "class":
        masked = main_values(run.objective, measure(run, after, domains, masked=True))
    name, seconds = run.federation.domain(task).name, time.perf_counter() - began
    run.emit(
        TaskFinished(
            task, name, main_values(run.objective, found), masked, seconds, further_metrics(run.objective, found)
        )
    )
