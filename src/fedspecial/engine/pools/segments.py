"""Memory that the driver shares with its worker processes, in files without names.

A segment is a file that has no name in any folder (`O_TMPFILE` on Linux), mapped into memory. The system frees it when
the last process that has it open ends, so nothing is left behind however the processes end, killed all at once
included. As it has no name, its file descriptor is passed to the workers through the pipe.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path

_NUMBERS = count()
_MEMORY = Path("/dev/shm")
"""A folder that is in memory, on Linux."""


class Segment:
    """A piece of shared memory. `number`: its name among the segments of a run."""

    def __init__(self, number: int, descriptor: int, size: int) -> None:
        self.number, self.descriptor, self.size = number, descriptor, size
        self.memory = mmap.mmap(descriptor, size)

    @staticmethod
    def create(size: int) -> Segment:
        """In the memory folder, or where that is missing or full (containers often have 64 MB) on the disk."""
        try:
            descriptor = _reserved(size, _MEMORY)
        except OSError:
            descriptor = _reserved(size, None)
        return Segment(next(_NUMBERS), descriptor, size)

    def close(self) -> None:
        """Free it in this process; a `BufferError` says that a tensor still refers to it."""
        self.memory.close()
        os.close(self.descriptor)


def _reserved(size: int, folder: Path | None) -> int:
    """A file without a name. Its space is reserved now: otherwise a full folder would crash whoever writes to it."""
    with tempfile.TemporaryFile(dir=folder) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        return os.dup(file.fileno())


def send_segments(connection: Connection, segments: Sequence[Segment], pid: int) -> None:
    for segment in segments:
        send_handle(connection, segment.descriptor, pid)


def receive_descriptor(connection: Connection) -> int:
    """The descriptor of the next segment that is sent."""
    descriptor: int = recv_handle(connection)
    return descriptor
