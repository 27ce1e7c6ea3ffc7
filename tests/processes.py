"""Run the command line in real processes that start quickly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT = {
    **{
        key: value
        for key, value in os.environ.items()
        if key not in ("FORCE_COLOR", "TTY_COMPATIBLE", "FEDSPECIAL_DATA")
    },
    **{"OMP_NUM_THREADS": "1", "COLUMNS": "200", "TERM": "xterm", "PYTHONWARNINGS": "ignore"},
}


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its exit code (negative: the signal) and what it printed."""

    code: int
    stdout: str
    stderr: str
    seconds: float = 0.0

    @property
    def error_line(self) -> str:
        """The message of a refused command, which is the only line on standard error."""
        lines = self.stderr.splitlines()
        assert self.code == 2, self
        assert len(lines) == 1, self
        assert lines[0].startswith("Error: "), self
        return lines[0].removeprefix("Error: ")


def fresh(*argv: object, **environment: str) -> Outcome:
    """``fresh("run", ...)`` runs `fedspecial` in a new Python."""
    command = [sys.executable, "-m", "fedspecial.cli.main", *map(str, argv)]
    done = subprocess.run(command, env=ENVIRONMENT | environment, capture_output=True, text=True, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr)


class Fork:
    """``fork("run", "digits-shift", ...)`` runs `fedspecial` in a forked process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        script = Path(__file__).parent / "resume" / "fork_server.py"
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=ENVIRONMENT | {"PYTHONPATH": path},
        )  # fmt: skip

    def __call__(
        self,
        *argv: object,
        kill_at: Sequence[object] | None = None,
        kill_after: float | None = None,
        terminal: str | None = None,
        draw: bool = False,
    ) -> Outcome:
        """`terminal`: the terminal, such as /dev/pts/3, that gets the output instead of a file.
        `draw`: with real figures, which take longer than a small run."""
        files = [self.folder / "stdout", self.folder / "stderr"]
        for path in files:
            path.write_text("")
        request = {"argv": [str(part) for part in argv], "stdout": terminal or str(files[0]), "stderr": str(files[1])}
        request |= {"folder": str(self.folder), "kill_at": kill_at, "kill_after": kill_after, "draw": draw}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        code, seconds = json.loads(self._process.stdout.readline())
        return Outcome(code, files[0].read_text(), files[1].read_text(), seconds)

    def close(self) -> None:
        with self._process:
            pass
