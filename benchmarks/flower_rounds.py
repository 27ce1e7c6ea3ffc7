"""Seconds of a round in a real federation on this machine: sites with a warm process, and with Flower's own start.

A SuperLink and three SuperNodes as processes, over TLS, with a small CNN on images of the sites' own; a round trains at
every site. Both federations run at the same time, so that other work on the machine slows down both, and each has half
of what is left: on a quiet machine a single one (`--only warm`) is faster. Processor time is that of all processes of
the SuperNodes, read from /proc ten times a second. Target: at most 8 seconds per round with warm processes. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from timing import Quartiles, arguments, set_threads, show, verdict

from fedspecial.flower.ops import pki
from fedspecial.flower.ops.demo import Tail
from fedspecial.flower.ops.new_app import write_app
from fedspecial.flower.ops.processes import LocalFederation

SITES = ("north", "south", "west")
TARGET = 8.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Deployment:
    """A federation of processes, and when its rounds ended.

    cpu: process → its processor seconds when it was last seen
    """

    name: str
    federation: LocalFederation
    run: Path
    ended: list[float] = field(default_factory=list)
    cpu_at: list[float] = field(default_factory=list)
    cpu: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._events = Tail(self.run / "events.jsonl")

    def look(self) -> None:
        for pid in [self.federation.processes[site].pid for site in SITES]:
            self._add_processor_time(pid)
        for line in self._events.lines():
            if json.loads(line)["event"] == "round":
                self.ended.append(time.monotonic())
                self.cpu_at.append(sum(self.cpu.values()))

    def _add_processor_time(self, pid: int) -> None:
        with suppress(OSError):
            user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            self.cpu[pid] = (int(user) + int(system)) / TICKS
            for thread in Path(f"/proc/{pid}/task").iterdir():
                for child in (thread / "children").read_text().split():
                    self._add_processor_time(int(child))

    @property
    def seconds(self) -> list[float]:
        """Of each round but the first, which waits for the sites."""
        return [later - earlier for earlier, later in zip(self.ended, self.ended[1:], strict=False)]

    @property
    def cpu_seconds(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.cpu_at, self.cpu_at[1:], strict=False)]


def write_data(folder: Path) -> Path:
    """One task of a site: images of two classes, as an .npz file."""
    folder.mkdir(parents=True)
    random, labels = np.random.default_rng(0), np.arange(256) % 2
    images = (random.integers(0, 120, (256, 3, 16, 16)) + 100 * labels[:, None, None, None]).astype(np.uint8)
    arrays = {"x_train": images, "y_train": labels, "x_test": images[:64], "y_test": labels[:64]}
    np.savez(folder / "scans.npz", **arrays)
    return folder


def start(stack: ExitStack, folder: Path, name: str, rounds: int, evaluate: bool) -> Deployment:
    identity = pki.make_server_identity(folder / "keys", pki.make_authority(folder / "keys"))
    write_app(folder / "app")
    federation = stack.enter_context(LocalFederation(folder, tls=identity, environment={"OMP_NUM_THREADS": "1"}))
    federation.start_superlink(deadline=300)
    for site in SITES:
        key = pki.make_node_key(folder / "keys", site)
        federation.register(key)
        state = folder / "sites" / site
        config = {"site": site, "data": str(write_data(folder / "data" / site)), "state": str(state)}
        federation.start_supernode(site, key=key, config=config, warm=name == "warm")
    more = f"width=4 batch_size=32 eval_every={int(evaluate)}"
    settings = {"sites": ",".join(SITES), "tasks": "scans", "classes": "left,right", "shape": "3,16,16", "more": more}
    settings |= {"rounds": rounds, "local_epochs": 1.0, "out": str(folder / "run")}
    federation.start_run(folder / "app", {**settings, "wait_seconds": 300.0, "reply_seconds": 300.0, "quorum": 1.0})
    return Deployment(name, federation, folder / "run")


def measure(names: list[str], rounds: int, evaluate: bool) -> dict[str, Deployment]:
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        found = {}
        for name in names:
            (Path(temporary) / name).mkdir()
            found[name] = start(stack, Path(temporary) / name, name, rounds, evaluate)
        pause = threading.Event()
        while any(len(deployment.ended) < rounds for deployment in found.values()):
            for deployment in found.values():
                deployment.look()
                if len(deployment.ended) < rounds and deployment.federation.processes["run"].poll() is not None:
                    raise SystemExit(deployment.federation.last_lines("run", 40))
            pause.wait(0.1)
        return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=("warm", "cold"), help="one federation alone")
    parser.add_argument("--evaluate", action="store_true", help="test the model after every round: a second message")


def main() -> None:
    args = arguments(__doc__, add_options)
    set_threads(args.threads)
    rounds = args.repeats or (3 if args.quick else 8)
    found = measure([args.only] if args.only else ["warm", "cold"], rounds + 1, args.evaluate)
    print(f"load {os.getloadavg()[0]:.1f} at the end")
    show("a round", [(name, Quartiles.of(of.seconds[:rounds])) for name, of in found.items()], "seconds")
    sites = [(name, Quartiles.of([s / len(SITES) for s in of.cpu_seconds[:rounds]])) for name, of in found.items()]
    show("processor time of a site", sites, "seconds per round")
    if not args.only:
        for what in ("seconds", "cpu_seconds"):
            medians = [Quartiles.of(getattr(found[name], what)[:rounds]).median for name in ("warm", "cold")]
            print(f"\nwarm / cold, {what} of a round: {medians[0] / medians[1]:.3f}")
    if "warm" in found:
        verdict("seconds of a round with warm processes", Quartiles.of(found["warm"].seconds[:rounds]), TARGET)


if __name__ == "__main__":
    main()
