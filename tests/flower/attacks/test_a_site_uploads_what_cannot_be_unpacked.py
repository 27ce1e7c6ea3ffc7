"""A registered site uploads objects that are not what they claim to be, past Flower's own client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flower_fixtures import SHORT, SITES, federate, finished, reasons_of, rounds_of
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, validate_object_content
from flwr.superlink.grid.http_grid import HttpGrid

from fedspecial.flower.app.client_app import make_client_app
from fedspecial.flower.app.threaded_grid import ThreadedGrid
from fedspecial.flower.app.unpacking import TooLargeError, unpacking_limited
from fedspecial.flower.grid import InProcessGrid, _set_message_id

pytestmark = pytest.mark.usefixtures("rendered", "unpictured")
Contents = dict[str, bytes]
"""Object id → its bytes, as a site uploads them."""


class UploadGrid(InProcessGrid):
    """Replies to training requests are uploaded object by object and unpacked by Flower; those of west are changed."""

    def __init__(self, folder: Path, change: Callable[[str, Contents], str | None]) -> None:
        nodes = [{"site": site, "state": str(folder / site)} for site in SITES]
        super().__init__(make_client_app(), nodes)
        self._west, self._change = self.get_node_ids()[2], change

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        for reply in super().pull_messages(message_ids):
            if reply.has_error() or reply.metadata.message_type != "train":
                yield reply
                continue
            root, contents = reply.object_id, uploaded(reply)
            if reply.metadata.src_node_id == self._west:
                root = self._change(root, contents) or root
            for content in contents.values():
                validate_object_content(content)  # as the SuperLink does
            message: Any = inflate_object_from_contents(root, contents)
            message.metadata.__dict__["_message_id"] = root
            yield message


def uploaded(item: Any) -> Contents:
    return {name: part.deflate() for name, part in get_all_nested_objects(item).items()}


def object_of(kind: str, children: list[str], body: bytes) -> bytes:
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body


def with_body(kind: str, body: bytes) -> Callable[[str, Contents], None]:
    """The objects of one kind get another body."""

    def change(root: str, contents: Contents) -> None:
        for name, content in contents.items():
            if content.startswith(f"{kind} ".encode()):
                children = content.partition(b"\0")[0].decode().split(" ")[1]
                contents[name] = object_of(kind, [children] if children else [], body)

    return change


def instead_of_the_message(item: Any) -> Callable[[str, Contents], str]:
    def change(root: str, contents: Contents) -> str:
        contents |= uploaded(item)
        return str(item.object_id)

    return change


def without_children(root: str, contents: Contents) -> None:
    contents[root] = object_of("Message", [], contents[root].partition(b"\0")[2])


def with_an_array_as_content(root: str, contents: Contents) -> None:
    array = Array(np.zeros(1))
    contents |= uploaded(array)
    contents[root] = object_of("Message", [array.object_id], contents[root].partition(b"\0")[2])


def with_repeated_chunks(root: str, contents: Contents) -> None:
    """The same chunk ten thousand times: 50 GB, if it has the 5 MB that Flower sends at once."""
    for name, content in contents.items():
        if content.startswith(b"Array "):
            head, _, body = content.partition(b"\0")
            described = {**json.loads(body), "arraychunk_ids": [0] * 10**4}
            contents[name] = object_of("Array", head.decode().split(" ")[1].split(","), json.dumps(described).encode())


UNREADABLE: dict[str, tuple[Callable[[str, Contents], Any], str]] = {
    "records that are no JSON": (with_body("RecordDict", b"\xff"), "UnicodeDecodeError"),
    "records that name nothing": (with_body("RecordDict", b"{}"), "ValueError"),
    "an array without a description": (with_body("Array", b"{}"), "KeyError"),
    "an array that is nested deeply": (with_body("Array", b"[" * 100_000), "RecursionError"),
    "a config that is no protobuf": (with_body("ConfigRecord", b"\x07"), "DecodeError"),
    "a message without content": (without_children, "IndexError"),
    "a message that contains an array": (with_an_array_as_content, "MessageInitializationError"),
    "records instead of a message": (instead_of_the_message(RecordDict({"a": ConfigRecord()})), "AttributeError"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_an_upload_that_cannot_be_unpacked_is_a_refused_reply_and_no_crash(kind: str, tmp_path: Path) -> None:
    change, error = UNREADABLE[kind]
    grid: Any = ThreadedGrid(UploadGrid(tmp_path, change), 5.0)
    run = federate(tmp_path, grid=grid, **SHORT, reply_seconds=20.0)
    assert reasons_of(run) == {"west": {f"the site failed: the reply cannot be unpacked ({error})"}}
    assert [update["site"] for update in rounds_of(run)[0]["updates"]] == ["north", "south", "east"]
    assert finished(run)["refusals"] == {"west": 1}


def test_an_array_that_names_its_chunk_ten_thousand_times_needs_no_memory(tmp_path: Path) -> None:
    grid: Any = ThreadedGrid(UploadGrid(tmp_path, with_repeated_chunks), 5.0, max_bytes=50e6)
    run = federate(tmp_path, grid=grid, **SHORT, reply_seconds=20.0)
    reason = "the site failed: the reply unpacks to more than 50000000 bytes, which is the limit"
    assert reasons_of(run) == {"west": {reason}}


def test_several_arrays_share_the_limit() -> None:
    arrays = (Array(np.full(9_000_000, number, np.uint8)) for number in (1, 2))
    records = RecordDict({"uploads": ArrayRecord({str(number): array for number, array in enumerate(arrays)})})
    contents = uploaded(records)

    def unpack() -> Any:
        return inflate_object_from_contents(records.object_id, dict(contents))

    with unpacking_limited(19e6):
        assert unpack().object_id == records.object_id
    with unpacking_limited(17e6), pytest.raises(TooLargeError, match="more than 17000000 bytes"):
        unpack()
    assert unpack().object_id == records.object_id  # outside, there is no limit


def test_a_reply_to_somebody_elses_message_is_not_used(tmp_path: Path) -> None:
    """What is unpacked names the message that it answers, and the site wrote that."""

    class Confused(InProcessGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
            for reply in super().pull_messages(message_ids):
                if reply.metadata.message_type == "train" and reply.metadata.src_node_id == self.get_node_ids()[2]:
                    reply.metadata.__dict__["_reply_to_message_id"] = first_of(self)
                yield reply

    def first_of(grid: InProcessGrid) -> str:
        return next(name for name, asked in seen.items() if asked == grid.get_node_ids()[0])

    seen: dict[str, int] = {}
    nodes = [{"site": site, "state": str(tmp_path / site)} for site in SITES]
    inner = Confused(make_client_app(), nodes)
    push = inner.push_messages

    def noted(messages: Iterable[Message]) -> list[str]:
        listed = list(messages)
        names = push(listed)
        seen.update({n: m.metadata.dst_node_id for n, m in zip(names, listed, strict=True)})
        return names

    inner.push_messages = noted  # type: ignore[method-assign]
    grid: Any = ThreadedGrid(inner, 5.0)
    run = federate(tmp_path, grid=grid, **SHORT, reply_seconds=2.0, grace_seconds=0.3)
    assert reasons_of(run) == {"west": {"no reply before the deadline"}}
    assert [update["site"] for update in rounds_of(run)[0]["updates"]] == ["north", "south", "east"]


class SuperLink:
    """Answers the requests of Flower's own Grid: there is one reply, whose objects are changed."""

    def __init__(self, reply: Message, change: Callable[[str, Contents], Any]) -> None:
        self._contents = uploaded(reply)
        change(reply.object_id, self._contents)
        described = message_to_proto(remove_content_from_message(reply))
        trees = [get_object_tree(reply)]
        self._replies = PullAppMessagesResponse(messages_list=[described], message_object_trees=trees)

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        return self._replies

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        content = self._contents[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        pass


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda root, contents: None, None),
        (with_repeated_chunks, "the reply unpacks to more than 50000000 bytes, which is the limit"),
        (with_body("Array", b"{}"), "the reply cannot be unpacked (KeyError)"),
    ],
)
def test_the_grid_of_a_real_deployment_survives_it_too(change: Any, problem: str | None, tmp_path: Path) -> None:
    InProcessGrid(make_client_app(), [])  # which gives this process the identity that messages need
    request = Message(RecordDict(), 5, "train")
    _set_message_id(request, "m1")
    reply = Message(RecordDict({"arrays": ArrayRecord({"x": Array(np.zeros(10_000, np.uint8))})}), reply_to=request)
    _set_message_id(reply, reply.object_id)
    grid = HttpGrid(insecure=True, token="token")
    grid._client, grid._run = SuperLink(reply, change), SimpleNamespace(run_id=1)  # type: ignore[assignment]
    (found,) = ThreadedGrid(grid, 60.0, max_bytes=50e6).pull_messages(["m1"])
    assert found.metadata.reply_to_message_id == "m1"
    assert (found.error.reason if found.has_error() else None) == problem
