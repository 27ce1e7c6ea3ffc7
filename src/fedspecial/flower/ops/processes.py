"""A SuperLink and its SuperNodes as child processes on this machine, stopped when the ``with`` block ends.

    with LocalFederation(folder, tls=identity) as federation:
        federation.start_superlink()
        federation.register(key)
        federation.start_supernode(key.name, key=key, config={"data": "site/north"})
        federation.wait_for_nodes([key.name])

All processes listen on 127.0.0.1, contact no other host and keep their files in `folder`. Flower starts further
processes, some of them in sessions of their own. All of them inherit an environment variable by which they are found,
so an exception, Ctrl-C or SIGTERM leaves none running. Only SIGKILL does, since it cannot be handled.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from fedspecial.core.files import write_atomic
from fedspecial.errors import InputError
from fedspecial.flower.ops.pki import NodeKey, ServerIdentity
from fedspecial.flower.ops.process_tree import TAG_VARIABLE, stop_processes

HOST = "127.0.0.1"
CONNECTION = "federation"  # name of the SuperLink in Flower's configuration
COMMANDS = Path(sys.executable).parent
GRACE = 8.0

CLOSED_NETWORK = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}


class ProcessError(RuntimeError):
    """A process of the federation failed; the message contains the end of its log."""


class LocalFederation:
    """Child processes on this machine. Without `tls` there is neither encryption nor authentication.

    environment: environment variables of all processes
    """

    def __init__(
        self, folder: Path, *, tls: ServerIdentity | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder.absolute()
        self.tls = tls
        self._variables = dict(environment or {})
        self.port = 0
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tag = uuid.uuid4().hex
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> LocalFederation:
        for name in ("logs", "flwr"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        if threading.current_thread() is threading.main_thread():
            self._handlers[signal.SIGTERM] = signal.signal(signal.SIGTERM, _exit)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._handlers:  # a second Ctrl-C must not interrupt the cleanup
            self._handlers[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.stop_all()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    @property
    def environment(self) -> dict[str, str]:
        """Environment of every process: no outside network, own configuration, Flower's commands on the path."""
        path = os.pathsep.join([str(COMMANDS), os.environ.get("PATH", "")])
        variables = {**CLOSED_NETWORK, **self._variables}
        return {**os.environ, **variables, "FLWR_HOME": str(self.folder / "flwr"), "PATH": path}

    def start_superlink(self, *, port: int | None = None, deadline: float = 60) -> None:
        """Start it and wait until it responds. Its database stays, so a second start continues with the same nodes."""
        self.port = port or self.port or free_port()
        command = ["flower-superlink", "--host", HOST, "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation", "--database", str(self.folder / "superlink.db")]
        if self.tls is None:
            command += ["--insecure"]
        else:
            command += ["--ssl-ca-certfile", str(self.tls.authority.absolute())]
            command += ["--ssl-certfile", str(self.tls.certificate.absolute())]
            command += ["--ssl-keyfile", str(self.tls.key.absolute()), "--enable-supernode-auth"]
        self._write_configuration()
        self.start("superlink", command)
        self.wait(self._is_healthy, "superlink", "the SuperLink does not respond", deadline)

    def register(self, key: NodeKey) -> None:
        """Register a node's public key and name at the SuperLink."""
        self.run_command(["flwr", "supernode", "register", str(key.public.absolute()), CONNECTION, "--name", key.name])

    def start_supernode(
        self,
        name: str,
        *,
        key: NodeKey | None = None,
        config: Mapping[str, Any] | None = None,
        proxy_port: int | None = None,
        warm: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start a node; `wait_for_nodes` waits until it is connected.

        proxy_port: connect through a proxy
        warm:       with a warm process for its messages, as `fedspecial flower supernode` starts it
        """
        command = ["fedspecial", "flower", "supernode"] if warm else ["flower-supernode"]
        command += ["--superlink", f"{HOST}:{proxy_port or self.port}"]
        command += ["--host", HOST, "--port", str(free_port())]
        if self.tls is None:
            command += ["--insecure"]
        else:
            command += ["--root-certificates", str(self.tls.authority.absolute())]
        if key is not None:
            command += ["--auth-supernode-private-key", str(key.private.absolute())]
        if config:
            command += ["--node-config", _flower_config(config)]
        return self.start(name, command)

    def start_run(self, app: Path, config: Mapping[str, Any] | None = None) -> subprocess.Popen[bytes]:
        """Submit an app. The process ends with the run and writes the run's log to ``logs/run.log``."""
        command = ["flwr", "run", str(app.absolute()), CONNECTION, "--stream"]
        return self.start("run", command + (["--run-config", _flower_config(config)] if config else []))

    def run_status(self) -> str:
        """Flower's status of the last submitted run, such as ``running`` or ``finished:completed``."""
        runs = json.loads(self.run_command(["flwr", "ls", CONNECTION, "--format", "json"]))["runs"]
        return str(max(runs, key=lambda run: run["pending-at"])["status"]) if runs else "none"

    def nodes_online(self) -> int:
        """Number of nodes that are connected to the SuperLink."""
        listed = json.loads(self.run_command(["flwr", "supernode", "ls", CONNECTION, "--format", "json"]))
        return sum(node["status"] == "online" for node in listed["nodes"])

    def wait_for_nodes(self, names: Collection[str], *, deadline: float = 60) -> None:
        """Wait until this many nodes are online; raises `ProcessError` if one of these processes ends."""

        def online() -> bool:
            for name in names:
                self.check(name)
            return self.nodes_online() >= len(names)

        # Each check starts a process, and frequent checks would slow down the nodes.
        self.wait(online, None, f"{len(names)} nodes are not online", deadline, pause=0.5)

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start any command as part of the federation; its output goes to ``logs/NAME.log``."""
        if name in self.processes and self.processes[name].poll() is None:
            raise InputError(f"process={name}: it is already running")
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                _installed(command), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder,
                env={**self.environment, TAG_VARIABLE: f"{self._tag}/{name}"}, start_new_session=True,
            )  # fmt: skip
        self.processes[name] = process
        return process

    def run_command(self, command: Sequence[str], *, deadline: float = 60) -> str:
        """Run a short command and return its output."""
        try:
            done = subprocess.run(
                _installed(command), capture_output=True, text=True, timeout=deadline, stdin=subprocess.DEVNULL,
                env={**self.environment, TAG_VARIABLE: f"{self._tag}/command"}, cwd=self.folder, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ProcessError(f"{' '.join(command[:3])} did not finish within {deadline:g} s") from None
        if done.returncode != 0:
            raise ProcessError(f"{' '.join(command[:3])} ended with code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def check(self, name: str) -> None:
        """Raise `ProcessError` with the end of its log if a process has ended."""
        process = self.processes.get(name)
        if process is not None and process.poll() is not None:
            raise ProcessError(f"{name} ended with code {process.returncode}:\n{self.last_lines(name)}")

    def wait(
        self, ready: Callable[[], bool], name: str | None, message: str, deadline: float, *, pause: float = 0.1
    ) -> None:
        """Wait until `ready()`, at most `deadline` seconds; raises `ProcessError` if the process `name` ends."""
        limit = time.monotonic() + deadline
        while not ready():
            if name is not None:
                self.check(name)
            if time.monotonic() > limit:
                log_end = f":\n{self.last_lines(name)}" if name else ""
                raise ProcessError(f"{message} after {deadline:g} s{log_end}")
            time.sleep(pause)

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def last_lines(self, name: str, number: int = 15) -> str:
        path = self.log(name)
        return "\n".join(path.read_text(errors="replace").splitlines()[-number:]) if path.exists() else ""

    def stop(self, name: str, *, signal_number: int = signal.SIGTERM, grace: float = GRACE) -> None:
        """Stop one process and everything it started; after `grace` seconds the rest is killed."""
        tag = f"{self._tag}/{name}"
        stop_processes([self.processes.pop(name)], tag, signal_number=signal_number, grace=grace)

    def stop_all(self) -> None:
        """Stop the nodes first, so that they can deregister at the SuperLink; then everything else with our tag."""
        order = sorted(self.processes, key=lambda name: name == "superlink")
        for name in order:
            if name != "superlink" and self.processes[name].poll() is None:
                self.processes[name].terminate()  # all at the same time; `stop` waits for them
        for name in order:
            self.stop(name)
        stop_processes([], self._tag, signal_number=signal.SIGTERM, grace=GRACE)

    def _is_healthy(self) -> bool:
        context = None if self.tls is None else ssl.create_default_context(cafile=str(self.tls.authority))
        address = f"{'http' if self.tls is None else 'https'}://{HOST}:{self.port}/health"
        handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)]
        try:
            with urllib.request.build_opener(*handlers).open(address, timeout=2) as response:
                return bool(response.status == 200)
        except ssl.SSLCertVerificationError:
            raise
        except (urllib.error.URLError, OSError):
            return False

    def _write_configuration(self) -> None:
        lines = [f"[superlink.{CONNECTION}]", f'address = "{HOST}:{self.port}"']
        if self.tls is None:
            lines += ["insecure = true"]
        else:
            lines += [f"root-certificates = {json.dumps(str(self.tls.authority.absolute()))}"]
        write_atomic(self.folder / "flwr" / "config.toml", ("\n".join(lines) + "\n").encode())


def free_port() -> int:
    """A port of 127.0.0.1 that is not in use."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _installed(command: Sequence[str]) -> list[str]:
    """The command that is installed next to this Python, regardless of PATH."""
    path = COMMANDS / command[0]
    return [str(path) if path.exists() else command[0], *command[1:]]


def _flower_config(settings: Mapping[str, Any]) -> str:
    """Settings for Flower's command line: TOML values, which are the same as JSON for text, numbers and booleans."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
