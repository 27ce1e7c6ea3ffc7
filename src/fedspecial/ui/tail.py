"""Reading a file that grows: only its new end is read.

A resumed run cuts its event log back to the last checkpoint and continues from there. A file that became shorter, was
replaced, or no longer contains the last bytes that were read is therefore read again from its beginning.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from fedspecial.ui.files import UnreadableFileError, open_regular

CHUNK = 1 << 20
MAX_LINE = 1 << 20
"""Of a longer line only this many bytes are kept."""
MARK = 2048
"""How many bytes before the end of the last read must be unchanged for the next read to continue there."""

Signature = tuple[int, int, int]


class TailReader:
    """Passes each complete line of a file to `line` once, in order; calls `restart` before reading from the beginning.

    share: how much of the file has been read, between 0 and 1
    """

    def __init__(self, root: Path, path: Path, line: Callable[[bytes], None], restart: Callable[[], None]) -> None:
        self.root, self.path, self._line, self._restart = root, path, line, restart
        self.problem: str | None = None
        self.share = 1.0
        self._offset, self._mark = 0, b""
        self._seen: Signature | None = None

    def poll(self, deadline: float) -> bool:
        """Read what is new until `deadline` (of `time.monotonic`); returns whether anything was."""
        try:
            status = os.lstat(self.path)
        except OSError:
            changed = self._seen is not None
            if changed:
                self._start_again()
            return changed
        signature = (status.st_ino, status.st_size, status.st_mtime_ns)
        if signature == self._seen and self.share == 1.0:
            return False
        try:
            with open_regular(self.root, self.path) as file:
                self._read(file.fileno(), signature, deadline)
            self.problem = None
        except UnreadableFileError as error:
            self._seen, self.share, self.problem = signature, 1.0, str(error)
        return True

    def _start_again(self) -> None:
        self._offset, self._mark, self._seen, self.share = 0, b"", None, 1.0
        self._restart()

    def _read(self, file: int, signature: Signature, deadline: float) -> None:
        same_file = self._seen is not None and self._seen[0] == signature[0]
        if self._offset and not (same_file and self._continues(file, signature[1])):
            self._start_again()
        buffer, at = b"", self._offset
        while True:
            chunk = os.pread(file, CHUNK, at)
            at += len(chunk)
            buffer = self._pass_lines(buffer + chunk)
            if len(buffer) > MAX_LINE:
                at, buffer = self._skip_line(file, buffer, at)
            if not chunk or time.monotonic() > deadline:
                break
        self._mark = os.pread(file, MARK, max(0, self._offset - MARK))[: min(MARK, self._offset)]
        self._seen = signature
        self.share = 1.0 if not chunk else min(0.999, self._offset / max(1, signature[1]))

    def _continues(self, file: int, size: int) -> bool:
        return size >= self._offset and os.pread(file, len(self._mark), self._offset - len(self._mark)) == self._mark

    def _pass_lines(self, buffer: bytes) -> bytes:
        *lines, rest = buffer.split(b"\n")
        for line in lines:
            self._line(line)
        self._offset += len(buffer) - len(rest)
        return rest

    def _skip_line(self, file: int, buffer: bytes, at: int) -> tuple[int, bytes]:
        """Pass the beginning of a very long line, and go to the line after it, if it is complete already."""
        end = at
        while chunk := os.pread(file, CHUNK, end):
            position = chunk.find(b"\n")
            if position >= 0:
                self._line(buffer[:MAX_LINE])
                self._offset = end + position + 1
                return self._offset, b""
            end += len(chunk)
        return end, b""
