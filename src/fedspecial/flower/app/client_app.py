"""The site's side of the federation: the client half of the method as a Flower ClientApp.

    app = make_client_app()

The node config says which site this is and where it finds its data and stores its client state:
``site="north" data="/srv/scans" tasks="ct-2019,ct-2022" state="/srv/fedspecial"``. Everything else is in the messages.
Flower starts a process for every message, so slow imports wait until they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedspecial.errors import InputError
from fedspecial.flower.app import wire
from fedspecial.flower.app.plan import FederationPlan
from fedspecial.flower.app.wire import ReplyHeader, SiteRequest

if TYPE_CHECKING:
    from fedspecial.flower.app.site import Site

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


def make_client_app(mods: Sequence[Mod] = ()) -> ClientApp:
    """mods: Flower mods around training, such as `clipping_mod`; they see full weights in ``arrays``."""
    app, sites = ClientApp(), _SiteCache()

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        site, request = sites.get(message, context)
        return site.train(message, request)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        site, request = sites.get(message, context)
        return site.evaluate(message, request)

    @app.query(_action(wire.QUERY))
    def query(message: Message, context: Context) -> Message:
        site, request = sites.get(message, context)
        return site.query(message, request)

    @app.query(_action(wire.IDENTIFY))
    def identify(message: Message, context: Context) -> Message:
        """Report the name of the site; missing folders are reported now and not when their task starts.

        A model with frozen weights is made now, so that the server can refuse a site whose frozen weights differ.
        """
        text, request = wire.read_request(message)
        plan, name = FederationPlan.of_json(text), _site_name(context.node_config)
        if plan.data is not None:
            from fedspecial.flower.app.site_data import task_paths

            task_paths(plan.tasks, name, context.node_config)
        frozen = sites.get(message, context)[0].frozen_sha256() if request.frozen else ""
        client = plan.client_number(name)
        header = ReplyHeader(name, client, request.task, request.round, frozen=frozen)
        return wire.make_reply(message, header, {}, {})

    return app


def _action(message_type: str) -> str:
    return message_type.removeprefix("query.")


def _site_name(node_config: Mapping[str, Any]) -> str:
    if "site" not in node_config:
        raise InputError('site: the node config does not name the site (add site="NAME")')
    return str(node_config["site"])


class _SiteCache:
    """Sites by plan and node, so that a process that stays alive does not read its data again."""

    def __init__(self) -> None:
        self._sites: dict[tuple[str, int], Site] = {}

    def get(self, message: Message, context: Context) -> tuple[Site, SiteRequest]:
        from fedspecial.flower.app.site import Site

        plan, request = wire.read_request(message)
        key = (plan, context.node_id)
        if key not in self._sites:
            name = _site_name(context.node_config)
            self._sites[key] = Site(FederationPlan.of_json(plan), name, context.node_config)
        return self._sites[key], request
