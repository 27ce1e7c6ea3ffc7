"""A site's side of the federation: the method's client half behind a Flower ClientApp.

    app = make_client_app()

The node config says who the site is and where its data and its states are:
``site="north" data="/srv/scans" tasks="ct-2019,ct-2022" state="/srv/fedspecial"``. What to do comes with each message.
Flower starts a process for every message, so nothing slow is imported before it is known what is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedspecial import __version__
from fedspecial.errors import InputError
from fedspecial.flower.app import wire
from fedspecial.flower.app.folders import folders_of
from fedspecial.flower.app.plan import Plan
from fedspecial.flower.app.wire import ReplyHeader, Request

if TYPE_CHECKING:
    from fedspecial.flower.app.site import Site

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


def make_client_app(mods: Sequence[Mod] = ()) -> ClientApp:
    """mods: Flower's or our own (`clipping_mod`), around training; they see whole weights in ``arrays``."""
    app, sites = ClientApp(), _Sites()

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        site, request = sites.at(message, context)
        return site.train(message, request)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        site, request = sites.at(message, context)
        return site.evaluate(message, request)

    @app.query("ask")
    def ask(message: Message, context: Context) -> Message:
        site, request = sites.at(message, context)
        return site.ask(message, request)

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        """Who this is; folders that are not there are told at once, not when their task comes."""
        text, request = wire.request_of(message)
        plan, name = Plan.of_json(text), site_name(context.node_config)
        if plan.data is not None:
            folders_of(plan.tasks, name, context.node_config)
        about = ReplyHeader(name, plan.number(name), request.task, request.round, release=__version__)
        return wire.answer(message, about, {}, {})

    return app


def site_name(node: Mapping[str, Any]) -> str:
    if "site" not in node:
        raise InputError('site: the node config does not say which site this is (site="name")')
    return str(node["site"])


class _Sites:
    """Sites by plan and node, so that a process that lives on does not read its data again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Site] = {}

    def at(self, message: Message, context: Context) -> tuple[Site, Request]:
        """The site that a message is for, and what it is asked."""
        from fedspecial.flower.app.site import Site

        plan, request = wire.request_of(message)
        key = (plan, context.node_id)
        if key not in self._known:
            self._known[key] = Site(Plan.of_json(plan), site_name(context.node_config), context.node_config)
        return self._known[key], request
