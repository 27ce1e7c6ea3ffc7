"""A SuperLink and its SuperNodes as child processes, gone when the block is left.

    with Federation(folder, tls=identity) as federation:
        federation.start_superlink()
        federation.register(key)
        federation.start_supernode(key.name, key=key, config={"data": "site/north"})
        federation.wait_for_nodes([key.name])

Everything listens on 127.0.0.1, asks nobody outside and keeps its files in `folder`. Flower starts further processes,
some of them in sessions of their own; all inherit a mark in their environment and are found by it, so that an
exception, Ctrl-C or SIGTERM leaves none behind. Only SIGKILL, which nobody hears, does.
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

from fedspecial.errors import InputError
from fedspecial.flower.ops.children import MARK, end
from fedspecial.flower.ops.pki import NodeKey, ServerIdentity

HOST = "127.0.0.1"
CONNECTION = "federation"  # the SuperLink's name in Flower's configuration
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
    """A process of the federation did not do what it should; the message holds the end of its log."""


class Federation:
    """Child processes on this machine. Without `tls` there is neither encryption nor authentication.

    environment: variables that all of them get
    """

    def __init__(
        self, folder: Path, *, tls: ServerIdentity | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder.absolute()
        self.tls = tls
        self._variables = dict(environment or {})
        self.port = 0
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._mark = uuid.uuid4().hex
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Federation:
        for name in ("logs", "flwr"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        if threading.current_thread() is threading.main_thread():
            self._handlers[signal.SIGTERM] = signal.signal(signal.SIGTERM, _exit)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._handlers:  # a second Ctrl-C must not leave half of them running
            self._handlers[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.stop_all()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    @property
    def environment(self) -> dict[str, str]:
        """Of every process: closed network, own configuration, and Flower's commands on the path."""
        path = os.pathsep.join([str(COMMANDS), os.environ.get("PATH", "")])
        own = {**CLOSED_NETWORK, **self._variables}
        return {**os.environ, **own, "FLWR_HOME": str(self.folder / "flwr"), "PATH": path}

    def start_superlink(self, *, port: int | None = None, deadline: float = 60) -> None:
        """Start it and wait until it answers. Its database outlives it, so a second start goes on with the same."""
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
        self.wait(self._is_healthy, "superlink", "the SuperLink does not answer", deadline)

    def register(self, key: NodeKey) -> None:
        """Let a node in: from now on the SuperLink knows its key, and its name."""
        self.ask(["flwr", "supernode", "register", str(key.public.absolute()), CONNECTION, "--name", key.name])

    def start_supernode(
        self,
        name: str,
        *,
        key: NodeKey | None = None,
        config: Mapping[str, Any] | None = None,
        through: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a node; `wait_for_nodes` tells when it has been let in. `through`: the port of a proxy."""
        command = ["flower-supernode", "--superlink", f"{HOST}:{through or self.port}"]
        command += ["--host", HOST, "--port", str(free_port())]
        if self.tls is None:
            command += ["--insecure"]
        else:
            command += ["--root-certificates", str(self.tls.authority.absolute())]
        if key is not None:
            command += ["--auth-supernode-private-key", str(key.private.absolute())]
        if config:
            command += ["--node-config", _words(config)]
        return self.start(name, command)

    def start_run(self, app: Path, config: Mapping[str, Any] | None = None) -> subprocess.Popen[bytes]:
        """Submit an app; the process ends with the run, whose log it writes to ``logs/run.log``."""
        command = ["flwr", "run", str(app.absolute()), CONNECTION, "--stream"]
        return self.start("run", command + (["--run-config", _words(config)] if config else []))

    def run_status(self) -> str:
        """Of the run submitted last, as Flower has it, such as ``running`` or ``finished:completed``."""
        runs = json.loads(self.ask(["flwr", "ls", CONNECTION, "--format", "json"]))["runs"]
        return str(max(runs, key=lambda run: run["pending-at"])["status"]) if runs else "none"

    def nodes_online(self) -> int:
        """How many nodes the SuperLink has let in and heard of lately."""
        told = json.loads(self.ask(["flwr", "supernode", "ls", CONNECTION, "--format", "json"]))
        return sum(node["status"] == "online" for node in told["nodes"])

    def wait_for_nodes(self, names: Collection[str], *, deadline: float = 60) -> None:
        """Wait until as many nodes as there are `names` are online; a node that ends meanwhile is an error."""

        def online() -> bool:
            for name in names:
                self.check(name)
            return self.nodes_online() >= len(names)

        # Asking starts a process of its own; asking all the time would slow down what it waits for.
        self.wait(online, None, f"{len(names)} nodes are not online", deadline, pause=0.5)

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start any command as part of the federation; what it says goes to ``logs/NAME.log``."""
        if name in self.processes and self.processes[name].poll() is None:
            raise InputError(f"process={name}: it is running already")
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                _found(command), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder,
                env={**self.environment, MARK: f"{self._mark}/{name}"}, start_new_session=True,
            )  # fmt: skip
        self.processes[name] = process
        return process

    def ask(self, command: Sequence[str], *, deadline: float = 60) -> str:
        """Run a short command to its end and return what it prints."""
        try:
            done = subprocess.run(
                _found(command), capture_output=True, text=True, timeout=deadline, stdin=subprocess.DEVNULL,
                env={**self.environment, MARK: f"{self._mark}/ask"}, cwd=self.folder, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ProcessError(f"{' '.join(command[:3])} did not end within {deadline:g} s") from None
        if done.returncode != 0:
            raise ProcessError(f"{' '.join(command[:3])} ended with code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def check(self, name: str) -> None:
        """A process that has ended by itself is an error, told with the end of its log."""
        process = self.processes.get(name)
        if process is not None and process.poll() is not None:
            raise ProcessError(f"{name} ended with code {process.returncode}:\n{self.last_lines(name)}")

    def wait(
        self, ready: Callable[[], bool], name: str | None, complaint: str, deadline: float, *, pause: float = 0.1
    ) -> None:
        """Until `ready`, watching the process `name`; no longer than `deadline` seconds."""
        end = time.monotonic() + deadline
        while not ready():
            if name is not None:
                self.check(name)
            if time.monotonic() > end:
                told = f":\n{self.last_lines(name)}" if name else ""
                raise ProcessError(f"{complaint} after {deadline:g} s{told}")
            time.sleep(pause)

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def last_lines(self, name: str, number: int = 15) -> str:
        path = self.log(name)
        return "\n".join(path.read_text(errors="replace").splitlines()[-number:]) if path.exists() else ""

    def stop(self, name: str, *, number: int = signal.SIGTERM, grace: float = GRACE) -> None:
        """End one process with all that it started; what does not hear the signal is killed after `grace` seconds."""
        end([self.processes.pop(name)], f"{self._mark}/{name}", number=number, grace=grace)

    def stop_all(self) -> None:
        """Nodes first, so that they can say good-bye to the SuperLink; then whatever else bears our mark."""
        order = sorted(self.processes, key=lambda name: name == "superlink")
        for name in order:
            if name != "superlink" and self.processes[name].poll() is None:
                self.processes[name].terminate()  # all at once; their ends are waited for below
        for name in order:
            self.stop(name)
        end([], self._mark, number=signal.SIGTERM, grace=GRACE)

    def _is_healthy(self) -> bool:
        context = None if self.tls is None else ssl.create_default_context(cafile=str(self.tls.authority))
        address = f"{'http' if self.tls is None else 'https'}://{HOST}:{self.port}/health"
        handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)]
        try:
            with urllib.request.build_opener(*handlers).open(address, timeout=2) as answer:
                return bool(answer.status == 200)
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
        (self.folder / "flwr" / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _found(command: Sequence[str]) -> list[str]:
    """The command as it was installed beside this Python, whatever the user's path says."""
    own = COMMANDS / command[0]
    return [str(own) if own.exists() else command[0], *command[1:]]


def _words(settings: Mapping[str, Any]) -> str:
    """As Flower's command line takes them: TOML values, which for texts, numbers and booleans are JSON's."""
    return " ".join(f"{word}={json.dumps(value)}" for word, value in settings.items())


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
