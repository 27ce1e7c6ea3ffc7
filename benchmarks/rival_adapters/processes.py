"""Install the rivals into an environment of their own, and talk to their adapters (see `protocol.py`)."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
CONSTRAINTS = HERE.parents[1] / "constraints.txt"
REPLY_SECONDS = 300


class RivalError(Exception):
    """A rival cannot be installed or does not reply; the message is one line."""


class Seconds(NamedTuple):
    wall: float
    cpu: float


@dataclass(frozen=True)
class Rival:
    """The names of `requirements-NAME.txt` and `NAME_adapter.py`, and what to call it in the output."""

    name: str
    label: str


RIVALS = {"pfl": Rival("pfl", "pfl-research"), "flower": Rival("flower", "Flower's simulation")}


def install(rival: Rival, folder: Path) -> Path:
    """The Python of the environment, with the pinned versions of this rival installed."""
    python, requirements = folder / "bin" / "python", HERE / f"requirements-{rival.name}.txt"
    installed = folder / requirements.name
    if installed.exists() and installed.read_text() == requirements.read_text():
        return python
    print(f"installing {rival.label} into {folder} (only on first use)", flush=True)
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "-r", str(requirements), "-c", str(CONSTRAINTS)])
    shutil.copyfile(requirements, installed)
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or done.stdout.strip().splitlines() or ["no output"]
        errors = [line for line in lines if line.startswith("ERROR")]
        raise RivalError((errors or lines)[-1])


class Adapter:
    """A running adapter. It is suspended while others are measured, because Flower polls even without work."""

    def __init__(self, rival: Rival, python: Path, problem: Any, folder: Path) -> None:
        self.problem = problem
        self.log = folder / f"{rival.name}.log"
        command = [str(python), str(HERE / f"{rival.name}_adapter.py"), problem.to_json()]
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(folder, problem.threads),
                start_new_session=True,
            )
        try:
            self._reply()
        except RivalError:
            self.close()
            raise

    def run(self, rounds: int) -> Seconds:
        self.process.send_signal(signal.SIGCONT)
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"rounds": rounds}).encode() + b"\n")
        self.process.stdin.flush()
        reply = self._reply()
        self.process.send_signal(signal.SIGSTOP)
        if reply["steps"] != rounds * self.problem.steps:
            raise RivalError(f"took {reply['steps']} SGD steps in {rounds} rounds, not {rounds * self.problem.steps}")
        return Seconds(reply["wall"], reply["cpu"])

    def _reply(self) -> dict[str, Any]:
        assert self.process.stdout
        readable, _, _ = select.select([self.process.stdout], [], [], REPLY_SECONDS)
        line = self.process.stdout.readline() if readable else b""
        if line:
            return dict(json.loads(line))
        last = (self.log.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
        raise RivalError(f"the adapter ended: {last}" if readable else f"no reply within {REPLY_SECONDS} s")

    def close(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def _environment(folder: Path, threads: int) -> dict[str, str]:
    """Fixed threads, no telemetry, all files in the temporary folder; Ray listens on this machine only."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": str(threads), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(folder / "flwr")}
    return environment | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": str(folder)}
