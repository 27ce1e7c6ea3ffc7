"""The engine that spreads clients over workers: local processes (`workers.py`) or Ray actors (`ray.py`).

The client states and the record of delivered payloads stay in the driver, the process that runs the loop. Results are
taken in the order of the chosen clients, whatever the order in which they arrive, so the model is the same bit for bit
for any number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedspecial.core.events import Event
from fedspecial.core.messages import Broadcast, packed_size, update_size
from fedspecial.core.vector import FlatModel
from fedspecial.engine.base import Messages, QueryReply, Reply, problem_with_result
from fedspecial.engine.clients.client import ClientRunner, samples_of
from fedspecial.engine.clients.client_states import ClientStates
from fedspecial.engine.clients.payloads import DigestCache, PayloadTracker
from fedspecial.engine.evaluate import EVAL_BATCH, subset_size
from fedspecial.engine.head import head_of
from fedspecial.engine.pools.jobs import EvalSet, Job, JobResult, PersonalJob, QueryJob, SummaryJob, TrainJob
from fedspecial.methods.base import Query
from fedspecial.objectives.base import Scores, Summary, mean_scores

WINDOW = 8
"""Results that may wait for earlier ones, per worker: it bounds the driver's memory, whatever the number of clients."""


class WorkerPool(Protocol):
    """Runs jobs on workers, and runs a job again elsewhere when its worker is lost."""

    @property
    def workers(self) -> int: ...

    def run(self, jobs: Sequence[Job], outputs: int) -> Iterator[tuple[int, JobResult]]:
        """(position of the job, result), in the order of completion; jobs start in the given order.

        The tensors of a result belong to the caller. Closing the iterator early abandons the jobs that are left.
        """
        ...

    def events(self) -> list[Event]:
        """What happened to the workers since the last call."""
        ...

    def close(self) -> None: ...


@dataclass
class PooledEngine:
    """`runner` is the driver's own: it tells how the data is divided; it trains nothing."""

    runner: ClientRunner
    states: ClientStates
    payloads: PayloadTracker
    pool: WorkerPool
    _digests: DigestCache = field(default_factory=DigestCache)

    @property
    def workers(self) -> int:
        return self.pool.workers

    def train(
        self, task: int, round: int, clients: Sequence[int], messages: Messages, client_lr: float
    ) -> Iterator[Reply]:
        costs: dict[int, tuple[int, int]] = {}

        def job(client: int) -> TrainJob:
            message = messages(client)
            costs[client] = self.payloads.bytes_down(client, message)
            return TrainJob(client, message, self.states.load_bytes(client), client_lr)

        for window in self._windows(clients):
            jobs = [job(client) for client in window]
            work = [self._work(job.message, job.client) for job in jobs]
            for client, made, result in zip(window, jobs, self._ordered(jobs, work), strict=True):
                if result.update is None:
                    yield Reply(client, None, result.problem, 0, *costs.pop(client))
                    continue
                self._store(client, result)
                sizes = (update_size(result.update), *costs.pop(client))
                yield Reply(
                    client, result.update, None, *sizes, made.message.vectors, result.memory, result.paper_memory
                )

    def query(self, query: Query) -> Iterator[QueryReply]:
        clients = range(self.runner.federation.clients) if query.clients is None else query.clients
        for window in self._windows(clients):
            jobs, down = [], []
            for client in window:
                message = query.message(client)
                down.append(self.payloads.bytes_down(client, message)[0])
                jobs.append(QueryJob(client, message, self.states.load_bytes(client), query.name))
            work = [self._work(job.message, job.client) for job in jobs]
            for client, bytes_down, result in zip(window, down, self._ordered(jobs, work), strict=True):
                self._store(client, result)
                assert result.answer is not None
                sizes = (packed_size(result.answer.tensors, result.answer.numbers), bytes_down)
                problem = problem_with_result(result.answer, client, query)
                yield QueryReply(client, None if problem else result.answer, problem, *sizes)

    def evaluate(
        self,
        messages: Messages,
        tasks: Sequence[int],
        *,
        cap: int | None = None,
        masked: bool = False,
        complete: bool = False,
    ) -> list[Scores | None]:
        wanted = [EvalSet(task, cap, masked, complete) for task in tasks]
        if self.runner.method.personal or self.runner.keep_batch_norm:
            return self._personal_scores(messages, wanted)
        message, jobs = messages(0), []
        sizes = [subset_size(self.runner.federation.domain(samples.task).test, samples.cap) for samples in wanted]
        # Parts of whole batches: the batches, and with them all sums, are those of a single process.
        part = EVAL_BATCH * max(1, math.ceil(sum(sizes) / (2 * self.pool.workers * EVAL_BATCH)))
        for samples, size in zip(wanted, sizes, strict=True):
            own = self.runner.for_samples(message, samples.task)
            jobs += [SummaryJob(own, samples, at, min(at + part, size)) for at in range(0, size, part)]
        parts: dict[int, list[Summary]] = {task: [] for task in tasks}
        for job, result in zip(jobs, self._ordered(jobs, [job.stop - job.start for job in jobs]), strict=True):
            parts[job.samples.task].append(result.summary)
        scoring = self.runner.objective.scoring(complete=complete)
        return [scoring.scores(scoring.merge(parts[samples.task])) for samples in wanted]

    def _personal_scores(self, messages: Messages, wanted: Sequence[EvalSet]) -> list[Scores | None]:
        """The mean over clients. Clients with the same message and state are measured once."""
        inputs: list[Hashable] = []
        members: dict[Hashable, tuple[int, Broadcast, bytes]] = {}
        for client in range(self.runner.federation.clients):
            message = messages(client)
            key = (self._digests.content(message), self.states.content(client))
            inputs.append(key)
            members.setdefault(key, (client, message, self.states.load_bytes(client)))
        # Clients that share intermediate results stay together; those with statistics of their own share none.
        parts = self.pool.workers if self.runner.keep_batch_norm else 1
        groups = [list(members)[first::parts] for first in range(min(parts, len(members)))]
        jobs = [PersonalJob(samples, [members[key] for key in group]) for samples in wanted for group in groups]
        found: dict[tuple[EvalSet, Hashable], Scores] = {}
        work = [len(job.members) for job in jobs]
        for number, (job, result) in enumerate(zip(jobs, self._ordered(jobs, work), strict=True)):
            group = groups[number % len(groups)]
            found |= {(job.samples, key): value for key, value in zip(group, result.scores, strict=True)}
        return [mean_scores([found[samples, key] for key in inputs], [1] * len(inputs)) for samples in wanted]

    def set_model(self, model: FlatModel) -> None:
        self.runner.set_model(model)

    def checkpoint_state(self) -> tuple[dict[int, str], dict[str, Any]]:
        return self.states.index, self.payloads.to_json()

    def events(self) -> list[Event]:
        return self.pool.events()

    def close(self) -> None:
        self.pool.close()

    def _work(self, message: Broadcast, client: int) -> int:
        return len(samples_of(self.runner.federation, message, client).rows)

    def _windows(self, clients: Sequence[int]) -> Iterator[Sequence[int]]:
        size = WINDOW * self.pool.workers
        return (clients[at : at + size] for at in range(0, len(clients), size))

    def _ordered(self, jobs: Sequence[Job], work: Sequence[int]) -> Iterator[JobResult]:
        """Results in the order of `jobs`. The longest jobs start first, so that no worker is left waiting."""
        order = sorted(range(len(jobs)), key=lambda position: -work[position])
        waiting: dict[int, JobResult] = {}
        following = 0
        for position, result in self.pool.run([jobs[position] for position in order], self._outputs()):
            waiting[order[position]] = result
            while following in waiting:
                yield waiting.pop(following)
                following += 1

    def _outputs(self) -> int:
        """The number of outputs of the head, where it grows."""
        if self.runner.federation.benchmark.incremental != "class":
            return 0
        return head_of(self.runner.model).out_features

    def _store(self, client: int, result: JobResult) -> None:
        if result.state is not None:
            self.states.save_bytes(client, result.state)
