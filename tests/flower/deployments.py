"""A federation on real processes, as a user would start it: keys, the app of `flower init`, `flwr run`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fedspecial
from fedspecial.core.events import of_kind, read_events
from fedspecial.flower.ops.children import marked
from fedspecial.flower.ops.init import write_app
from fedspecial.flower.ops.pki import make_authority, make_node_key, make_server_identity
from fedspecial.flower.ops.processes import Federation

ROUNDS = {"rounds": 2, "local_epochs": 1.0, "model": "cnn"}
MORE = {"domains": "paper,neon", "cap": 80, "width": 4, "min_per_client": 4, "eval_every": 0}
PATIENT = {"answer_seconds": 120.0, "wait_seconds": 120.0, "quorum": 1.0}


@contextmanager
def deployed(folder: Path, sites: Sequence[str]) -> Iterator[Federation]:
    """A SuperLink and one SuperNode a site, over TLS, registered under the sites' names."""
    identity = make_server_identity(folder / "keys", make_authority(folder / "keys"))
    write_app(folder / "app")
    with Federation(folder, tls=identity, environment={"OMP_NUM_THREADS": "1"}) as federation:
        federation.start_superlink()
        for site in sites:
            key = make_node_key(folder / "keys", site)
            federation.register(key)
            config = {"site": site, "state": str(folder / "sites" / site)}
            federation.start_supernode(site, key=key, config=config)
        yield federation


def submit(federation: Federation, sites: Sequence[str], more: dict[str, Any] | None = None, **settings: Any) -> Path:
    """Start the run, or go on with it; returns its folder."""
    run, further = federation.folder / "run", {**MORE, **(more or {})}
    text = " ".join(f"{word}={value}" for word, value in further.items())
    config = {**ROUNDS, **PATIENT, **settings, "sites": ",".join(sites), "more": text, "out": str(run)}
    federation.start_run(federation.folder / "app", config)
    return run


def alone(folder: Path, sites: Sequence[str], more: dict[str, Any] | None = None, **settings: Any) -> str:
    """The model that one process learns from the same words."""
    settings = {**ROUNDS, **MORE, **(more or {}), **settings, "method": "special", "lam": 0.25}
    number = {"clients": len(sites), "clients_per_round": len(sites)}
    return str(fedspecial.run("digits-shift", **settings, **number, out=folder / "alone").model_sha256)


def wait_for_round(federation: Federation, run: Path, task: int, round: int, seconds: float = 240) -> None:
    def played() -> bool:
        events = read_events(run / "events.jsonl") if (run / "events.jsonl").exists() else []
        return (task, round) in [(event["task"], event["round"]) for event in of_kind(events, "round")]

    federation.wait(played, "run", f"task {task} round {round + 1} was not played", seconds)


def wait_for_end(federation: Federation, run: Path, seconds: float = 400) -> None:
    federation.processes["run"].wait(seconds)
    assert (run / "finished.json").exists(), federation.last_lines("run", 60)


def kill_server_app(federation: Federation) -> None:
    """kill −9 of the one process in which our server runs; the SuperLink stays."""
    found = [
        pid
        for pid in marked(f"{federation._mark}/superlink")
        if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert found
    for pid in found:
        os.kill(pid, signal.SIGKILL)
