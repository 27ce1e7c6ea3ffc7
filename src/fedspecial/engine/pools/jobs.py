"""The work of clients as jobs that a worker process or a Ray actor can run: what it is given and what it returns.

A worker is stateless: a job contains the message and the client's stored state, a result contains the new state. A job
can therefore be run again on another worker after a failure, and the result is the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedspecial.core.messages import Broadcast, ClientState, Update
from fedspecial.core.streams import preserve_torch_rng
from fedspecial.core.vector import FlatModel
from fedspecial.data.samples import Samples
from fedspecial.engine.clients.client import ClientRunner
from fedspecial.engine.evaluate import classes_of, fixed_subset
from fedspecial.engine.head import head_of, wider_head
from fedspecial.methods.base import QueryResult
from fedspecial.objectives.base import Scores, Scoring, Summary

BuildRunner = Callable[[], ClientRunner]
"""Makes the client runner inside a worker: reads the data, builds the model. It must be possible to pickle it."""


@dataclass(frozen=True)
class TrainJob:
    """Local training of one client in one round."""

    client: int
    message: Broadcast
    state: bytes
    client_lr: float


@dataclass(frozen=True)
class QueryJob:
    """One client's answer to a query at the beginning or end of a task."""

    client: int
    message: Broadcast
    state: bytes
    query: str


@dataclass(frozen=True)
class EvalSet:
    """Test samples of a task: all of them, or the fixed subset of `cap`; `masked`: only the task's classes compete;
    `complete`: for all metrics, and not only the main one."""

    task: int
    cap: int | None
    masked: bool
    complete: bool = False


@dataclass(frozen=True)
class SummaryJob:
    """What the metrics need of the global model's predictions on the test samples [start, stop)."""

    message: Broadcast
    samples: EvalSet
    start: int
    stop: int


@dataclass(frozen=True)
class PersonalJob:
    """The metrics of each of these clients on the test samples, where clients predict differently."""

    samples: EvalSet
    members: Sequence[tuple[int, Broadcast, bytes]]


Job = TrainJob | QueryJob | SummaryJob | PersonalJob


@dataclass(frozen=True)
class JobResult:
    """What a job returns; which fields are set depends on the job.

    state: the client's new state, None where the job leaves it as it was
    """

    state: bytes | None = None
    update: Update | None = None
    problem: str | None = None
    memory: int = 0
    paper_memory: int = 0
    answer: QueryResult | None = None
    summary: Summary = ()
    scores: tuple[Scores, ...] = ()


def describe(job: Job) -> str:
    """For messages about a failed job: which client, task and round."""
    if isinstance(job, TrainJob):
        return f"client {job.client}, task {job.message.task}, round {job.message.round + 1}"
    if isinstance(job, QueryJob):
        return f"client {job.client}, task {job.message.task}, query '{job.query}'"
    return f"evaluation on task {job.samples.task}"


@dataclass
class ClientWorker:
    """Runs jobs on one client runner, one after another."""

    runner: ClientRunner

    def run(self, job: Job, outputs: int) -> JobResult:
        """`outputs`: the number of outputs that the head has at the server now. An update's deltas are valid until the
        next job."""
        self._fit_head(outputs)
        with preserve_torch_rng():
            if isinstance(job, TrainJob):
                return self._train(job)
            if isinstance(job, QueryJob):
                return self._query(job)
            return self._summarize(job) if isinstance(job, SummaryJob) else self._personal(job)

    def _train(self, job: TrainJob) -> JobResult:
        self.runner.model.check_views()
        state = ClientState.from_bytes(job.state)
        local = self.runner.train(job.client, job.message, state, job.client_lr)
        stored = _stored(state) if local.update is not None else None
        return JobResult(stored, local.update, local.problem, local.memory, local.paper_memory)

    def _query(self, job: QueryJob) -> JobResult:
        state = ClientState.from_bytes(job.state)
        answer = self.runner.answer_query(job.client, job.message, state, job.query)
        return JobResult(_stored(state), answer=answer)

    def _summarize(self, job: SummaryJob) -> JobResult:
        samples, classes = self._samples(job.samples)
        part, scoring = samples.take(slice(job.start, job.stop)), self._scoring(job.samples)
        return JobResult(
            summary=self.runner.summarize(0, job.message, ClientState(), part, scoring, classes, first=job.start)
        )

    def _personal(self, job: PersonalJob) -> JobResult:
        samples, classes = self._samples(job.samples)
        shared: dict[str, Any] | None = None if self.runner.keep_batch_norm else {}
        scoring = self._scoring(job.samples)
        return JobResult(
            scores=tuple(
                self.runner.scores(client, message, ClientState.from_bytes(state), samples, scoring, classes, shared)
                for client, message, state in job.members
            )
        )

    def _scoring(self, wanted: EvalSet) -> Scoring:
        return self.runner.objective.scoring(complete=wanted.complete)

    def _samples(self, wanted: EvalSet) -> tuple[Samples, list[int] | None]:
        domain = self.runner.federation.domain(wanted.task)
        samples = fixed_subset(domain.test, wanted.cap, self.runner.seed, domain.name)
        return samples, classes_of(domain.train) if wanted.masked else None

    def _fit_head(self, outputs: int) -> None:
        """In class-incremental runs the head grows; the values of the new rows come with the next broadcast."""
        runner = self.runner
        if runner.federation.benchmark.incremental != "class" or head_of(runner.model).out_features >= outputs:
            return
        runner.model.load_buffers(None)
        wider_head(runner.model.module, outputs, runner.seed, task=0)
        runner.set_model(FlatModel(runner.model.module))


def _stored(state: ClientState) -> bytes:
    return state.to_bytes() if state else b""
