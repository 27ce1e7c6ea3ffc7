"""A SuperNode whose messages are handled by copies of one warm process, not by cold ones.

Flower starts the command `flwr-clientapp` for every message, and that process imports torch again. It finds the command
on the PATH, and so do we: `start_supernode` puts a folder with a small replacement first on the PATH. The replacement
asks a process that has everything imported, over a socket that only this user can open, to fork a copy; the copy then
*is* `flwr-clientapp`, with the same arguments, standard streams and exit code. As before, a message has a process of
its own, and nothing of one message is left for the next. If the warm process does not answer, the replacement becomes
the original command. Linux only; elsewhere the SuperNode is started without it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from fedspecial import methods
from fedspecial.errors import InputError

CLIENT_APP = "flwr-clientapp"
IMPORTS = (
    *("flwr.supernode.cli", "httpcore", "fedspecial.flower.app.client_app", "fedspecial.flower.app.site"),
    "sklearn.datasets",
)
"""What a message needs; the last one for trials with the embedded digits."""
LARGEST_REQUEST = 2**16
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
"""Of the SuperNode, unless they are set: no request to other hosts, and less waiting before a message is handled."""

# Flower's executor does not read the exit code. `-S`: the standard library is enough, and starts four times as fast.
REPLACEMENT = """#!{python} -ES
import json, os, signal, socket, sys
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    link.connect({address!r})
    request = json.dumps({{"argv": sys.argv[1:], "cwd": os.getcwd()}}).encode()
    socket.send_fds(link, [request], [0, 1, 2])
    child = int(link.recv(64) or 0)
except OSError:
    child = 0
if not child:
    os.execv({original!r}, [{original!r}, *sys.argv[1:]])
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, lambda received, frame: os.kill(child, received))
sys.exit(int(link.recv(64) or 1))
"""


def start_supernode(arguments: Sequence[str]) -> NoReturn:
    """Start the warm process and become `flower-supernode` with these arguments."""
    commands = Path(sys.executable).parent
    program, original = commands / "flower-supernode", commands / CLIENT_APP
    if not (program.exists() and original.exists()):
        raise InputError(f"flower-supernode: not found in {commands}; install fedspecial[flower] there")
    environment = {**ENVIRONMENT, **os.environ}
    path = [str(commands), environment.get("PATH", "")]
    if sys.platform == "linux":
        folder = Path(tempfile.mkdtemp(prefix="fedspecial-"))  # readable by this user only
        write_replacement(folder, original)
        subprocess.Popen([sys.executable, "-m", __name__, str(folder)], stdin=subprocess.DEVNULL, env=environment)
        path.insert(0, str(folder))
    environment["PATH"] = os.pathsep.join(path)
    os.execve(program, [str(program), *arguments], environment)


def write_replacement(folder: Path, original: Path) -> Path:
    """The command that Flower will find instead of the original."""
    path = folder / CLIENT_APP
    text = REPLACEMENT.format(python=sys.executable, address=str(folder / "socket"), original=str(original))
    path.write_text(text, encoding="utf-8")
    path.chmod(0o700)
    return path


def serve(folder: Path) -> None:
    """Fork a copy for every request, until the SuperNode, which is the parent of this process, has ended."""
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the SuperNode, whose end ends this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended copies are removed by the system
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.bind(str(folder / "socket"))
            server.listen(16)  # requests wait until the imports are done
            _import_all()
            server.settimeout(1.0)
            while os.getppid() == parent:
                with contextlib.suppress(TimeoutError):
                    connection, _ = server.accept()
                    with connection:
                        if os.fork() == 0:
                            server.close()
                            _become_client_app(connection)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _become_client_app(connection: socket.socket) -> NoReturn:
    """Handle one message in this copy, as `flwr-clientapp` would."""
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    connection.settimeout(None)
    code = 1
    try:
        request, descriptors, _, _ = socket.recv_fds(connection, LARGEST_REQUEST, 3)
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        content = json.loads(request)
        os.chdir(content["cwd"])
        sys.argv = [str(Path(sys.executable).parent / CLIENT_APP), *content["argv"]]
        connection.send(str(os.getpid()).encode())
        from flwr.supernode.cli import flwr_clientapp

        flwr_clientapp()
        code = 0
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        with contextlib.suppress(OSError):
            connection.send(str(code).encode())
        os._exit(code)


def _import_all() -> None:
    """Everything that a message needs; no computation, since threads do not survive a fork."""
    for module in IMPORTS:
        importlib.import_module(module)
    for name in methods.names():
        methods.find(name)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
