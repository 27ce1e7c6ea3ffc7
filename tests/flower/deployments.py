"""A federation of real processes, started as a user would: keys, the app of `flower init`, `flwr run`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import permits

import fedspecial
from fedspecial.core.events import of_kind, read_events
from fedspecial.flower.app.plan import MIN_BATCH
from fedspecial.flower.ops.new_app import write_app
from fedspecial.flower.ops.pki import NodeKey, make_authority, make_node_key, make_server_identity
from fedspecial.flower.ops.process_tree import find_tagged
from fedspecial.flower.ops.processes import LocalFederation

ROUNDS = {"rounds": 2, "local_epochs": 1.0, "model": "cnn"}
MORE = {"domains": "paper,neon", "cap": 80, "width": 4, "min_per_client": 4, "eval_every": 0}
PATIENT = {
    "reply_seconds": 120.0, "wait_seconds": 120.0, "quorum": 1.0, "on_refused_model": "continue", "above_chance": False,
}  # fmt: skip


@contextmanager
def deployed(
    folder: Path, sites: Sequence[str], data: Path | None = None, *, with_permits: bool = False
) -> Iterator[LocalFederation]:
    """A SuperLink and one SuperNode per site, over TLS, registered under the names of the sites.

    data:         the folder with one folder of data per site; without it, the sites share a benchmark
    with_permits: sites train when they are allowed to, see `permits`
    """
    identity = make_server_identity(folder / "keys", make_authority(folder / "keys"))
    write_app(folder / "app")
    if with_permits:
        (folder / "app" / "client_app.py").write_text(permits.CLIENT_APP)
    with LocalFederation(folder, tls=identity, environment={"OMP_NUM_THREADS": "1"}) as federation:
        federation.start_superlink()
        for site in sites:
            add_site(federation, site, data, warm=with_permits or data is not None)
        yield federation


def add_site(
    federation: LocalFederation, site: str, data: Path | None = None, process: str | None = None, **how: Any
) -> None:
    """Register a new key under the name of a site and start its SuperNode.

    process: name of the process and of its key and state, if it is not the site's
    """
    key = make_node_key(federation.folder / "keys", process or site)
    federation.register(replace(key, name=site))
    permits.folder_of(federation, site).mkdir(parents=True, exist_ok=True)
    start_site(federation, site, data, process, **how)


def start_site(
    federation: LocalFederation, site: str, data: Path | None = None, process: str | None = None, **how: Any
) -> None:
    """Start the SuperNode of a registered site."""
    folder, process = federation.folder, process or site
    key = NodeKey(site, folder / "keys" / process, folder / "keys" / f"{process}.pub")
    config = {"site": site, "state": str(folder / "sites" / process)}
    config |= {"permits": str(permits.folder_of(federation, site))} | ({"data": str(data / site)} if data else {})
    federation.start_supernode(process, key=key, config=config, **how)


def submit(
    federation: LocalFederation, sites: Sequence[str], more: dict[str, Any] | None = None, **settings: Any
) -> Path:
    """Start the run, or go on with it; returns its folder. A further setting that is None is left out."""
    run, further = federation.folder / "run", {**MORE, **(more or {})}
    text = " ".join(f"{name}={value}" for name, value in further.items() if value is not None)
    config = {**ROUNDS, **PATIENT, **settings, "sites": ",".join(sites), "more": text, "out": str(run)}
    federation.start_run(federation.folder / "app", config)
    return run


def alone(folder: Path, sites: Sequence[str], more: dict[str, Any] | None = None, **settings: Any) -> str:
    """Hash of the model that one process trains with the same settings."""
    settings = {**ROUNDS, **MORE, **(more or {}), **settings, "method": "special", "lam": 0.25, "min_batch": MIN_BATCH}
    number = {"clients": len(sites), "clients_per_round": len(sites)}
    return str(fedspecial.run("digits-shift", **settings, **number, out=folder / "alone").model_sha256)


def wait_for_round(federation: LocalFederation, run: Path, task: int, round: int, seconds: float = 240) -> None:
    def finished() -> bool:
        events = read_events(run / "events.jsonl") if (run / "events.jsonl").exists() else []
        return (task, round) in [(event["task"], event["round"]) for event in of_kind(events, "round")]

    federation.wait(finished, "run", f"task {task} round {round + 1} did not finish", seconds)


def wait_for_end(federation: LocalFederation, run: Path, seconds: float = 400) -> None:
    federation.processes["run"].wait(seconds)
    assert (run / "finished.json").exists(), federation.last_lines("run", 60)


def kill_server_app(federation: LocalFederation) -> None:
    """SIGKILL to the process of the ServerApp; the SuperLink keeps running."""
    found = [
        pid
        for pid in find_tagged(f"{federation._tag}/superlink")
        if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert found
    for pid in found:
        os.kill(pid, signal.SIGKILL)
