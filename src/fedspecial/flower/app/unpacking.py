"""What happens when Flower cannot unpack a reply, or when it would unpack to more bytes than a reply may have.

`pull_messages` makes records and arrays of what a site uploaded before anybody can look at it. An upload that is not
what it claims to be raises an exception there, and an array may name the same uploaded chunk a million times. So each
reply is pulled alone, arrays are measured before they are put together, and an exception becomes an error reply.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr.app import Array, Error, Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

UNREADABLE = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError),
    DecodeError,
)
"""What unpacking raises because of the content; errors of the connection to the SuperLink are other ones."""
_UNKNOWN = 0  # Flower's code for an error without one of its own
_SUPERLINK = 1  # Flower's number of its node
_allowed = threading.local()


class TooLargeError(ValueError):
    """The arrays of a message have more bytes than `unpacking_limited` allows."""


def pull_one(grid: Grid, message_id: str, max_bytes: float = math.inf) -> list[Message]:
    """The reply to one message if it has arrived, or an error reply if it cannot be unpacked."""
    try:
        with unpacking_limited(max_bytes):
            found = list(grid.pull_messages([message_id]))
    except TooLargeError as error:
        return [_error_reply(message_id, str(error))]
    except UNREADABLE as error:
        return [_error_reply(message_id, f"the reply cannot be unpacked ({type(error).__name__})")]
    # What is unpacked says itself which message it answers; the SuperLink knows it.
    return [reply for reply in found if reply.metadata.reply_to_message_id == message_id]


@contextmanager
def unpacking_limited(max_bytes: float) -> Iterator[None]:
    """In this thread, the arrays of a received message may have this many bytes together."""
    _allowed.limit = _allowed.left = max_bytes
    try:
        yield
    finally:
        del _allowed.limit, _allowed.left


def _error_reply(message_id: str, reason: str) -> Message:
    """A reply as the SuperLink makes one; Flower wants to see the message that it answers."""
    request = Message(RecordDict(), _SUPERLINK, "query")
    request.metadata.__dict__["_message_id"] = message_id  # as Flower's own Grid does; there is no public setter
    return Message(Error(_UNKNOWN, reason), reply_to=request)


def _inflate_measured(cls: type[Array], content: bytes, children: Mapping[str, Any] | None = None) -> Array:
    if hasattr(_allowed, "left"):
        _allowed.left -= _size(content, children or {})
        if _allowed.left < 0:
            raise TooLargeError(f"the reply unpacks to more than {_allowed.limit:.0f} bytes, which is the limit")
    array: Array = _inflate(cls, content, children)
    return array


def _size(content: bytes, children: Mapping[str, Any]) -> int:
    """Bytes of an array: the head names its chunks, and the body lists their positions in the head."""
    head, _, body = content.partition(b"\0")
    names = head.decode().split(" ")[1].split(",")
    return sum(len(children[names[at]].data) for at in json.loads(body)["arraychunk_ids"])


_inflate = Array.inflate.__func__  # type: ignore[attr-defined]
Array.inflate = classmethod(_inflate_measured)  # type: ignore[method-assign, assignment]
