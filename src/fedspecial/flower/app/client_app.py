"""The site's side of the federation: the client half of the method as a Flower ClientApp.

    app = make_client_app()

The node config says which site this is, where it finds its data and stores its client state, and which policy it has:
``site="north" data="/srv/scans" tasks="ct-2019,ct-2022" state="/srv/fedspecial" policy="/etc/fedspecial/policy.yaml"``.
The messages say what to compute, within that policy. An error never leaves the site as text, see `site_faults`.
Flower starts a process for every message, so slow imports wait until they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedspecial.core.files import owner_only
from fedspecial.errors import InputError
from fedspecial.flower.app import wire
from fedspecial.flower.app.site_faults import SiteError, faults_as, state_folder, write_to_log
from fedspecial.flower.app.site_plan import SitePlan
from fedspecial.flower.app.wire import ReplyHeader, SiteRequest
from fedspecial.flower.governance.site_policy import SitePolicy
from fedspecial.flower.governance.site_settings import PolicyError, is_plain_name
from fedspecial.flower.logs import one_line

if TYPE_CHECKING:
    from fedspecial.flower.app.site import Site

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]
Work = Callable[["_Received"], Message]


def make_client_app(mods: Sequence[Mod] = ()) -> ClientApp:
    """mods: Flower mods around training, such as `clipping_mod`; they see full weights in ``arrays``."""
    app, sites = ClientApp(), _SiteCache()

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        return _answer(message, context, lambda received: sites.get(received).train(message, received.request))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return _answer(message, context, lambda received: sites.get(received).evaluate(message, received.request))

    @app.query(_action(wire.QUERY))
    def query(message: Message, context: Context) -> Message:
        return _answer(message, context, lambda received: sites.get(received).query(message, received.request))

    @app.query(_action(wire.IDENTIFY))
    def identify(message: Message, context: Context) -> Message:
        return _answer(message, context, lambda received: _identify(received, sites))

    return app


def _identify(received: _Received, sites: _SiteCache) -> Message:
    """Report the name of the site; missing folders are reported now and not when their task starts.

    A model with frozen weights is made now, so that the server can refuse a site whose frozen weights differ.
    """
    plan, name, request = received.plan, received.name, received.request
    client = plan.client_number(name)
    if plan.data is not None:
        from fedspecial.flower.app.site_data import task_paths

        with faults_as("data"):
            task_paths(plan.tasks, name, received.policy, received.node_config)
    frozen = sites.get(received).frozen_sha256() if request.frozen else ""
    header = ReplyHeader(name, client, request.task, request.round, frozen=frozen)
    return wire.make_reply(received.message, header, {}, {})


class _Received:
    """A message at a site, and what the site's own configuration says; each part is checked when it is first used."""

    def __init__(self, message: Message, context: Context) -> None:
        self.message, self.node, self.node_config = message, context.node_id, context.node_config
        self.name = str(self.node_config.get("site", ""))
        self.state_folder = state_folder(self.name, self.node_config)
        self.policy, self.request = SitePolicy(), SiteRequest("", -1)
        self.plan_json = ""

    def read(self) -> None:
        if not self.name:
            raise InputError('site: the node config does not name the site (add site="NAME")')
        if not is_plain_name(self.name):
            raise InputError(f"site={self.name}: not a plain name")
        self.policy = SitePolicy.of_node_config(self.node_config)
        self.plan_json, self.request = wire.read_request(self.message)
        self.plan = SitePlan.of_json(self.plan_json)


def _answer(message: Message, context: Context, work: Work) -> Message:
    """Do the work of a message; an error is logged here and leaves the site as a code and a count."""
    received = _Received(message, context)
    try:
        with owner_only(), faults_as("failed"):
            received.read()
            reply = work(received)
            _check_size(reply, received.policy)
            return reply
    except SiteError as fault:
        request = received.request
        about = f"{message.metadata.message_type} task {request.task} round {request.round + 1}"
        write_to_log(received.state_folder, fault, about)
        text = fault.text(redact=received.policy.redact_errors)
        position = (request.client, request.task, request.round)
        header = ReplyHeader(one_line(received.name[:200]), *position, problem=one_line(text), retry=fault.may_pass)
        return wire.make_reply(message, header, {}, {})


def _check_size(reply: Message, policy: SitePolicy) -> None:
    if wire.message_size(reply) > policy.max_upload_megabytes * 1e6:
        raise PolicyError(f"the reply is larger than max_upload_megabytes={policy.max_upload_megabytes:g}")


def _action(message_type: str) -> str:
    return message_type.removeprefix("query.")


class _SiteCache:
    """Sites by plan, policy and node, so that a process that stays alive does not read its data again."""

    def __init__(self) -> None:
        self._sites: dict[tuple[str, str, int], Site] = {}

    def get(self, received: _Received) -> Site:
        from fedspecial.flower.app.site import Site

        key = (received.plan_json, received.policy.model_dump_json(), received.node)
        if key not in self._sites:
            self._sites[key] = Site(received.plan, received.name, received.policy, received.node_config)
        return self._sites[key]
