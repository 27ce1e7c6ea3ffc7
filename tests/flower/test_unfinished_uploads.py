"""A site whose upload does not end holds up nobody but itself."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flower_fixtures import federate, reasons_of, rounds_of
from flwr.app import Message
from timed_grid import FakeTime, TimedGrid, timed_grid, training

from fedspecial.core.events import of_kind, read_events
from fedspecial.flower.app import threaded_grid
from fedspecial.flower.app.threaded_grid import KEEP_SECONDS, ThreadedGrid
from fedspecial.flower.grid import Delivery

pytestmark = pytest.mark.usefixtures("rendered", "unpictured")
_ = timed_grid
LONGEST = 60.0  # so that a test whose pulls wait for each other fails instead of hanging


class Uploads(TimedGrid):
    """Sites compute when they are asked. The upload of the site `stalled` begins, and ends when `released` is set."""

    def __init__(self, folder: Path, clock: FakeTime) -> None:
        super().__init__(folder, clock)
        self.stalled: int | None = None
        self.released = threading.Event()
        self._nodes: dict[str, int] = {}
        self._lock = threading.Lock()
        self.pulled: list[str] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        message_ids = super().push_messages(messages)
        for message_id in message_ids:
            request = self._requests.pop(message_id)
            if request.metadata.message_type == "train":
                self._nodes[message_id] = request.metadata.dst_node_id
            self._in_transit[message_id] = [Delivery(self._run_client(request))]
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        listed = list(message_ids)
        if any(self._nodes.get(message_id) == self.stalled is not None for message_id in listed):
            self.pulled += listed
            self.released.wait(LONGEST)
        with self._lock:
            return iter(list(super().pull_messages(listed)))


@pytest.fixture
def uploads(timed_grid: TimedGrid, tmp_path: Path) -> Iterator[Uploads]:
    grid = Uploads(tmp_path, timed_grid.clock)
    grid.stalled = grid.get_node_ids()[1]
    yield grid
    grid.released.set()


def test_asynchronous_steps_go_on_during_an_upload_that_does_not_end(uploads: Uploads, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"domains": "paper", "clients_per_round": 4, "mode": "async", "buffer": 2, "rounds": 4}
    uploads.delays = {node: training(1.0) for node in uploads.get_node_ids() if node != uploads.stalled}
    run = federate(tmp_path, grid=ThreadedGrid(uploads, 0.05), reply_seconds=3600.0, grace_seconds=5.0, **settings)  # type: ignore[arg-type]
    events = read_events(run / "events.jsonl")
    used = [update["client"] for step in of_kind(events, "server_step") for update in step["updates"]]
    assert len(used) == 16
    assert set(used) == {0, 2, 3}
    lost = {(event["client"], event["reason"]) for event in of_kind(events, "update_lost")}
    assert (1, "task ended") in lost
    assert uploads.clock.now < 60
    assert len(uploads.pulled) == 1  # the reply is taken once, not again by each later call


def test_a_synchronous_round_closes_during_an_upload_that_does_not_end(uploads: Uploads, tmp_path: Path) -> None:
    settings = {"domains": "paper", "clients_per_round": 4, "rounds": 1}
    run = federate(tmp_path, grid=ThreadedGrid(uploads, 0.05), reply_seconds=3600.0, grace_seconds=5.0, **settings)  # type: ignore[arg-type]
    assert [[update["site"] for update in line["updates"]] for line in rounds_of(run)] == [["north", "west", "east"]]
    assert reasons_of(run) == {"south": {"no reply before the deadline"}}
    assert uploads.clock.now < 60


def asked_to_identify(grid: Uploads) -> list[str]:
    """Message ids of requests that every site answers at once with an error, since they are empty."""
    from fedspecial.flower.app import wire
    from fedspecial.flower.app.wire import SiteRequest

    nodes = grid.get_node_ids()
    request = SiteRequest("run", -1)
    return grid.push_messages([wire.make_request(wire.IDENTIFY, node, "{}", request, None, {}) for node in nodes])


def test_a_reply_that_takes_longer_is_returned_by_a_later_call(uploads: Uploads) -> None:
    grid, message_ids = ThreadedGrid(uploads, 0.05), asked_to_identify(uploads)
    uploads._nodes = {message_ids[1]: uploads.get_node_ids()[1]}
    first = [reply.metadata.reply_to_message_id for reply in grid.pull_messages(message_ids)]
    while len(first) < 3:  # on a slow machine
        first += [reply.metadata.reply_to_message_id for reply in grid.pull_messages(message_ids[:1] + message_ids[2:])]
    assert sorted(first) == sorted(message_ids[:1] + message_ids[2:])
    assert grid.pull_messages(message_ids[1:2]) == []
    uploads.released.set()
    later: list[Message] = []
    while not later:
        later = grid.pull_messages(message_ids[1:2])
    assert [reply.metadata.reply_to_message_id for reply in later] == message_ids[1:2]


def test_what_fails_in_a_thread_reaches_the_caller(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(message_ids: Iterable[str]) -> Iterator[Message]:
        raise ConnectionError("the SuperLink is gone")

    monkeypatch.setattr(uploads, "pull_messages", fail)
    with pytest.raises(ConnectionError, match="the SuperLink is gone"):
        ThreadedGrid(uploads, LONGEST).pull_messages(["message-1"])


def test_replies_that_nobody_asks_for_any_more_are_forgotten(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime()
    monkeypatch.setattr(threaded_grid, "time", clock)
    grid, message_ids = ThreadedGrid(uploads, 0.05), asked_to_identify(uploads)
    uploads._nodes = {message_ids[1]: uploads.get_node_ids()[1]}
    grid.pull_messages(message_ids[1:2])
    (pull,) = grid._pulls
    uploads.released.set()
    pull.future.result(LONGEST)
    grid.pull_messages([])
    assert grid._pulls == [pull]
    clock.now += KEEP_SECONDS + 1
    grid.pull_messages([])
    assert not grid._pulls
