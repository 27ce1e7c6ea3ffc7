"""`fedspecial flower check-site`: is this hospital ready to join? Data, disk, clock, keys and connection.

Everything is checked with the site's own files, before any SuperNode is started. Nothing is sent except a request for
the proxy's date. Details may contain file names, since they are shown at the site.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from fedspecial.errors import InputError
from fedspecial.flower.app.plan import FederationPlan, number_of
from fedspecial.flower.app.site_faults import SiteError, state_folder
from fedspecial.flower.governance.site_policy import SitePolicy
from fedspecial.flower.ops.supernode_arguments import misspelt, parse_node_config, read_private_key

LEAST_FREE_BYTES = 1_000_000_000
LARGEST_CLOCK_ERROR = 30.0
"""Seconds. Certificates and signed messages have times; Flower refuses messages of a node whose clock is far off."""


@dataclass
class SiteCheck:
    """passed, failed: lines about what was checked · notes: what could not be checked"""

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """An error in this block is a failed check."""
        try:
            yield
        except (InputError, SiteError, OSError, HTTPException) as error:
            text = str(error)
            if isinstance(error, OSError) and error.filename:
                text = f"{error.filename}: {error.strerror}"
            self.failed.append(f"{what}: {' '.join(text.split())}")


def check_site(
    node_config: str,
    app: Path | None = None,
    key: Path | None = None,
    superlink: str | None = None,
    root_certificates: Path | None = None,
) -> SiteCheck:
    """
    node_config: as for flower-supernode, ``site="north" data="/srv/scans" …``
    app:         the folder of the Flower app, whose pyproject.toml describes the data; without it, no data is read
    """
    found = SiteCheck()
    config = parse_node_config(node_config)
    site = str(config.get("site", ""))
    found.failed += misspelt(config)
    policy = SitePolicy(data=str(config["data"]) if "data" in config else None)
    with found.of("policy"):
        if not site:
            raise InputError('the node config does not name the site (add site="NAME")')
        policy = SitePolicy.of_node_config(config)
        found.passed.append(f"policy: {config.get('policy', 'the defaults')}")
    _check_data(found, site, policy, config, app)
    _check_disk(found, state_folder(site, config))
    _check_key(found, key)
    _check_connection(found, superlink, root_certificates)
    return found


def _check_data(found: SiteCheck, site: str, policy: SitePolicy, config: Mapping[str, Any], app: Path | None) -> None:
    if app is None:
        found.notes.append("data: not read, because the app is not given (--app)")
        return
    with found.of("data"):
        plan = _plan_of(app)
        number_of(site, plan.sites)
        if plan.data is None:
            found.notes.append("data: the app is a trial, which needs none")
            return
        from fedspecial.flower.app.site_data import SiteData
        from fedspecial.flower.app.site_plan import SitePlan, plan_for_sites

        received = SitePlan.of_json(plan_for_sites(plan, plan.resolved()))
        data = SiteData(received, received.resolved(policy), site, policy, config)
        for number, task in enumerate(plan.tasks, 1):
            with found.of(f"data: task '{task}'"):
                data.read(number)
                domain = data.federation.domain(number)
                counts = f"{len(domain.train)} training and {len(domain.test)} test samples"
                if not len(domain.train):
                    found.notes.append(f"data: task '{task}': this site has none, so it takes no part in the task")
                elif not len(domain.test):
                    found.failed.append(f"data: task '{task}': {counts}; without test samples nothing can be measured")
                elif min(len(domain.train), len(domain.test)) < policy.min_group:
                    found.failed.append(f"data: task '{task}': {counts}, fewer than min_group={policy.min_group}")
                else:
                    found.passed.append(f"data: task '{task}': {counts}")


def _plan_of(app: Path) -> FederationPlan:
    try:
        content = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
        return FederationPlan.of_run_config(content["tool"]["flwr"]["app"]["config"])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError):
        raise InputError(f"{app / 'pyproject.toml'}: not the app of a federation") from None


def _check_disk(found: SiteCheck, state: Path) -> None:
    with found.of("disk"):
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = state / ".check-site"
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
        free = shutil.disk_usage(state).free
        if free < LEAST_FREE_BYTES:
            raise InputError(f"{state}: only {free / 1e9:.2f} GB are free; 1 GB is the least for states and payloads")
        if mode := state.stat().st_mode & 0o077:
            raise InputError(f"{state}: others can read it (mode {mode:03o}); chmod 700 {state}")
        found.passed.append(f"disk: {state} can be written, {free / 1e9:.0f} GB are free")


def _check_key(found: SiteCheck, key: Path | None) -> None:
    if key is None:
        found.notes.append("key: not given (--key)")
        return
    with found.of("key"):
        public = read_private_key(key)
        beside = key.with_name(key.name + ".pub")
        if beside.exists() and beside.read_bytes().split()[:2] != public.split()[:2]:
            raise InputError(f"{beside}: it is not the public key of {key}")
        found.passed.append(f"key: {key}; its public key must be registered: {public.decode()}")


def _check_connection(found: SiteCheck, superlink: str | None, root: Path | None) -> None:
    if superlink is None:
        found.notes.append("connection and clock: not checked, because the address is not given (--superlink)")
        return
    with found.of("connection"):
        host, _, port = superlink.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise InputError(f"--superlink {superlink}: expected HOST:PORT")
        if root is not None and not os.access(root, os.R_OK):
            raise InputError(f"{root}: the root certificate cannot be read")
        try:
            context = ssl.create_default_context(cafile=str(root) if root else None)
        except ssl.SSLError:
            raise InputError(f"{root}: not a certificate; give the federation's ca.pem") from None
        connection = HTTPSConnection(host.removeprefix("[").removesuffix("]"), int(port), timeout=10, context=context)
        try:
            connection.request("GET", "/v1/fleet/")
            date = connection.getresponse().getheader("Date")
        except ssl.SSLCertVerificationError as error:
            raise InputError(f"{superlink}: its certificate is refused ({error.verify_message})") from None
        except (TimeoutError, socket.gaierror, ConnectionError, UnicodeError) as error:
            raise InputError(f"{superlink}: cannot be reached ({error})") from None
        finally:
            connection.close()
        found.passed.append(f"connection: {superlink} answers, and its certificate is valid")
        _check_clock(found, date)


def _check_clock(found: SiteCheck, date: str | None) -> None:
    try:
        theirs = parsedate_to_datetime(date or "").timestamp()
    except (ValueError, OverflowError):
        found.notes.append("clock: the server does not tell its time")
        return
    error = time.time() - theirs
    if abs(error) > LARGEST_CLOCK_ERROR:
        found.failed.append(f"clock: it differs from the server's by {error:+.0f} s; switch on time synchronisation")
    else:
        found.passed.append("clock: it agrees with the server's within 30 s")
