"""A process that has imported torch and forks a child for each requested command line, so that many real processes can
be started and killed in a short time.

One JSON line in: ``argv``, ``stdout`` and ``stderr`` (paths), ``folder`` (where to run), ``kill_at`` (arguments
of `kill_points.kill_at`), ``kill_after`` (seconds; a kill from outside) and ``draw`` (whether figures are drawn). One
JSON line out: the exit code, negative for a signal, and the seconds it took.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from multiprocessing import resource_tracker
from typing import Any

import kill_points
import torch
from matplotlib.figure import Figure

import fedspecial.cli.progress
import fedspecial.methods.special
import fedspecial.report.comparison
import fedspecial.report.trackers
import fedspecial.runs.api
import fedspecial.runs.execute
import figures
from fedspecial.cli.main import main
from fedspecial.data import catalogue
from rendered_digits import rendered_once


def warm_up() -> None:
    """Do once what every child would repeat: render the digits, find the fonts. The children's own processes are forked
    as well, and files are not synced, which protects from a power failure, not from a kill."""
    torch.set_num_threads(1)
    resource_tracker.ensure_running()  # one for all processes, or each would remove the shared memory of the others
    forking = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method=None: forking
    os.fsync = os.fstat
    rendered_once().start()
    catalogue.load("digits-shift")
    figure = Figure(layout="constrained")
    figure.add_subplot().set_title("warm")
    figure.savefig(os.devnull, format="png")


def child(request: dict[str, Any]) -> None:
    for number, path in ((1, request["stdout"]), (2, request["stderr"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOCTTY, 0o644), number)
    os.chdir(request["folder"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["kill_at"]:
        kill_points.kill_at(*request["kill_at"])
    if not request["draw"]:
        Figure.savefig = figures.save_blank
    sys.argv = ["fedspecial", *request["argv"]]
    code = 1
    try:
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            child(request)
        if request["kill_after"] is not None:
            while (
                time.monotonic() - began < request["kill_after"]
                and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            ):
                time.sleep(0.001)
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        print(json.dumps([os.waitstatus_to_exitcode(status), time.monotonic() - began]), flush=True)


if __name__ == "__main__":
    assert fedspecial.runs.execute
    warm_up()
    serve()
