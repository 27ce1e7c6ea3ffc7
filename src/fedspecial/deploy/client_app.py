"""A site's side of the federation: the method's client half behind a Flower ClientApp.

    app = make_client_app()

The node config says who the site is and where its data and its states are:
``site="north" data="/srv/scans" tasks="ct-2019,ct-2022" state="/srv/fedspecial"``. What to do comes with each message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedspecial import __version__
from fedspecial.config import Resolved
from fedspecial.core.messages import Broadcast, ClientState, Tensors
from fedspecial.core.streams import torch_state_kept
from fedspecial.deploy import wire
from fedspecial.deploy.holdings import site_federation
from fedspecial.deploy.plan import Plan
from fedspecial.deploy.store import SiteStore
from fedspecial.deploy.wire import Answered, Request
from fedspecial.engine.checkpoint import Position
from fedspecial.engine.client import Workplace
from fedspecial.engine.evaluate import classes_of, fixed_subset
from fedspecial.errors import InputError
from fedspecial.session import fixed_threads, make_workplace

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


class Site:
    """A site under one plan; kept between messages where the process lives that long."""

    def __init__(self, plan: str, node: Mapping[str, Any]) -> None:
        if "site" not in node:
            raise InputError('site: the node config does not say which site this is (site="name")')
        self.name = str(node["site"])
        self.plan = Plan.of_json(plan)
        self.number = self.plan.number(self.name)
        self.resolved: Resolved = self.plan.resolved()
        self.federation = site_federation(self.plan, self.resolved.config, self.name, node)
        self.states = Path(str(node.get("state", f"fedspecial-site-{self.name}")))
        self._place: tuple[int, Workplace] | None = None

    def place(self, task: int) -> Workplace:
        """Where training happens, with a model that has the outputs of this task."""
        outputs = self.federation.num_classes(task)
        if self._place is None or self._place[0] != outputs:
            self._place = outputs, make_workplace(self.resolved, self.federation, None, Position(task, 1))
        return self._place[1]

    def answered(self, request: Request, **fields: Any) -> Answered:
        return Answered(self.name, self.number, request.task, request.round, **fields)


Work = Callable[[Site, Request, Broadcast, ClientState], tuple[Answered, Tensors, Tensors]]


def make_client_app(mods: Sequence[Mod] = ()) -> ClientApp:
    """mods: Flower's or our own (`clipping_mod`), around training; they see whole weights in ``arrays``."""
    app, sites = ClientApp(), _Sites()

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        return sites.work(message, context, _train)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return sites.work(message, context, _evaluate)

    @app.query("ask")
    def ask(message: Message, context: Context) -> Message:
        return sites.work(message, context, _ask)

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        site, request = sites.at(message, context)
        held = {d.name: [len(d.train), len(d.test)] for d in site.federation.benchmark.domains}
        return wire.answer(message, site.answered(request, counts=held, release=__version__), {}, {})

    return app


class _Sites:
    """Sites by plan and node, so that a process that lives on does not read its data again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Site] = {}

    def at(self, message: Message, context: Context) -> tuple[Site, Request]:
        plan, request = wire.request_of(message)
        key = (plan, context.node_id)
        if key not in self._known:
            self._known[key] = Site(plan, context.node_config)
        return self._known[key], request

    def work(self, message: Message, context: Context, work: Work) -> Message:
        """Load what the request names, work, and keep the state under the request's version."""
        site, request = self.at(message, context)
        if request.client != site.number:
            raise InputError(f"site={site.name}: it is client {site.number}, but was asked as client {request.client}")
        store = SiteStore(site.states, request.run)
        records = message.content.array_records
        sent = wire.from_record(records["payloads"]) if "payloads" in records else {}
        held, missing = store.take(request.payloads, sent)
        if missing:
            return wire.answer(message, site.answered(request, missing=missing), {}, {})
        state = store.load(request.base)
        if state is None:
            raise InputError(f"site={site.name}: its state '{request.base}' is gone from {store.folder}")
        with fixed_threads(site.resolved.config.threads), torch_state_kept():
            answered, vectors, uploads = work(site, request, wire.broadcast_of(message, request, held), state)
        if request.version and answered.problem is None:
            store.save(request.version, state, [*request.keep, request.base])
        return wire.answer(message, answered, vectors, uploads)


def _train(site: Site, request: Request, broadcast: Broadcast, state: ClientState) -> tuple[Answered, Tensors, Tensors]:
    place = site.place(request.task)
    turn = place.train(site.number, broadcast, state, request.client_lr)
    if turn.update is None:
        return site.answered(request, problem=turn.problem), {}, {}
    update = turn.update
    work = {"steps": update.steps, "samples": update.samples, "loss": update.loss, "numbers": update.numbers}
    answered = site.answered(request, **work, memory=turn.memory, paper_memory=turn.paper_memory)
    return answered, place.trained(broadcast), update.uploads


def _ask(site: Site, request: Request, broadcast: Broadcast, state: ClientState) -> tuple[Answered, Tensors, Tensors]:
    said = site.place(request.task).answer(site.number, broadcast, state, request.stage)
    return site.answered(request, numbers=said.numbers), {}, said.tensors


def _evaluate(
    site: Site, request: Request, broadcast: Broadcast, state: ClientState
) -> tuple[Answered, Tensors, Tensors]:
    """Right answers and samples of every domain asked for that this site can test."""
    place, counts = site.place(request.task), {}
    for task in request.tasks:
        domain = site.federation.domain(task)
        samples = fixed_subset(domain.test, request.cap, site.resolved.config.seed, domain.name)
        if len(samples):
            classes = classes_of(domain.train) if request.masked else None
            share = place.accuracy(site.number, broadcast, state, samples, classes)
            counts[str(task)] = [round(share * len(samples)), len(samples)]
    return site.answered(request, counts=counts), {}, {}
