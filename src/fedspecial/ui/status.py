"""The state of a federation for `fedspecial flower status`: as text, as JSON, and for Prometheus.

Everything is read from the files of the run directory, as the web page does it; the server is not asked.
"""

from __future__ import annotations

import calendar
import contextlib
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedspecial.errors import InputError
from fedspecial.ui.audit_log import AuditTrail
from fedspecial.ui.files import UnreadableFileError, finite, read_json_object, text_of
from fedspecial.ui.local_host import HOST, names_this_machine
from fedspecial.ui.state import signature_of, state_of

NO_ERROR = "no error was recorded: it was interrupted; the same `flwr run` continues it"


def status_of(folder: Path) -> dict[str, Any]:
    """Everything that the status shows, as JSON."""
    root = folder.resolve()
    if not (root / "audit.jsonl").exists():
        raise InputError(f"{folder}: not the run directory of a federation (it has no audit.jsonl)")
    trail = AuditTrail(root, root)
    trail.poll()
    while trail.share_read < 1:
        trail.poll()
    state = state_of(root, root, signature_of(root))
    decisions, problems = trail.decisions()
    live = _optional(root, "sites.json")
    return {
        "run": str(folder),
        "state": state.state,
        "reason": NO_ERROR if state.state == "stopped" else state.reason,
        "rounds": {"recorded": trail.num_rounds, "last": trail.rounds[-1] if trail.rounds else None},
        "sites": _sites(trail, live, running=state.state == "running"),
        "sites_time": text_of(live["time"]) if "time" in live else None,
        "accuracy": _accuracy(root),
        "gate": decisions[-1] if decisions else None,
        "privacy": trail.privacy,
        "waiting_changes": _waiting_changes(root),
        "audit": trail.chain(),
        "problems": [f"{problem.file}: {problem.text}" for problem in problems],
    }


def _sites(trail: AuditTrail, live: dict[str, Any], *, running: bool) -> list[dict[str, Any]]:
    """What the log says about each site, and whether it is connected, which only a running server knows."""
    seen = live.get("sites")
    seen = seen if isinstance(seen, dict) else {}
    rows = []
    for row in trail.site_rows():
        now = seen.get(row["name"])
        now = now if isinstance(now, dict) else {}
        connected = now.get("connected") is True if running and now else None
        rows.append(
            {
                **row,
                "connected": connected,
                "last_reply": text_of(now["last_reply"]) if "last_reply" in now else None,
                "reply_seconds": finite(now.get("reply_seconds")),
                "waiting_seconds": finite(now.get("waiting_seconds")) if running else None,
            }
        )
    return rows


def _accuracy(root: Path) -> dict[str, dict[str, float]]:
    """Domain → "all sites" and each site → its accuracy (or main metric) after the last task that ended."""
    history = _optional(root, "promotion-history.json")
    last = list(history.values())[-1] if history else {}
    found: dict[str, dict[str, float]] = {}
    with contextlib.suppress(AttributeError, TypeError, ValueError, KeyError, ZeroDivisionError):
        for domain, sites in last.items():
            pairs = {text_of(site): _share(score) for site, score in sites.items()}
            total = sum(count for _, count in pairs.values())
            mean = sum(value * count for value, count in pairs.values()) / total
            found[text_of(domain)] = {"all sites": mean, **{site: value for site, (value, _) in pairs.items()}}
    return found


def _share(score: Any) -> tuple[float, int]:
    if isinstance(score, dict):
        return float(score["value"]), int(score["total"])
    return score[0] / score[1], int(score[1])


def _waiting_changes(root: Path) -> list[dict[str, str]]:
    """The tasks and sites that an operator added or removed and the server has not, see `flower/app/membership.py`."""
    found = [_optional(root, str(path.relative_to(root))) for path in sorted((root / "changes").glob("*.json"))]
    return [{key: text_of(request.get(key)) for key in ("change", "name")} for request in found if request]


def _optional(root: Path, name: str) -> dict[str, Any]:
    """A JSON file of the run; empty where it does not exist yet or cannot be read at this moment."""
    try:
        return read_json_object(root, root / name)
    except UnreadableFileError:
        return {}


def status_text(status: dict[str, Any]) -> str:
    """The status in lines for a terminal."""
    last = status["rounds"]["last"]
    where = f", task {last['task']} round {last['round'] + 1}: {last['outcome']}" if last else ", no round yet"
    lines = [f"{status['run']}: {status['state']}{where}" + (f" ({status['reason']})" if status["reason"] else "")]
    for site in status["sites"]:
        connected = {True: "connected", False: "NOT CONNECTED", None: "connection not known"}[site["connected"]]
        connected = site["state"] if site["removed"] else connected
        parts = [connected, f"{site['used']} of {site['requested']} updates used", f"{site['refused']} refused"]
        if site["missed"]:
            parts.append(f"late by {site['missed']} rounds")
        if site["last_reply"]:
            parts.append(f"last answer {site['last_reply']} after {site['reply_seconds'] or 0:.1f} s")
        if site["waiting_seconds"]:
            parts.append(f"waiting for it since {site['waiting_seconds']:.0f} s")
        if site["last_reason"]:
            parts.append(f"last reason: {site['last_reason']}")
        lines.append(f"  {site['name']}: {', '.join(parts)}")
    for domain, values in status["accuracy"].items():
        lines.append(f"  {domain}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()))
    if status["gate"]:
        lines.append(f"  gate after task {status['gate']['task']}: {status['gate']['reason']}")
    if status["privacy"]:
        lines.append("  privacy: " + ", ".join(f"{name} {value}" for name, value in status["privacy"].items()))
    for change in status["waiting_changes"]:
        lines.append(f"  waiting to be applied: {change['change'].replace('_', ' ')}: {change['name']}")
    chain = status["audit"] or {}
    lines.append(f"  audit log: {chain.get('state', 'not verified')}, {chain.get('signed', 'signatures not checked')}")
    return "\n".join([*lines, *(f"  problem: {text}" for text in [*chain.get("problems", []), *status["problems"]])])


def prometheus_text(status: dict[str, Any]) -> str:
    """The numbers of the status in Prometheus' text format."""
    lines = []

    def add(name: str, kind: str, text: str, values: list[tuple[dict[str, str], float | None]]) -> None:
        known = [(labels, value) for labels, value in values if value is not None]
        if known:
            lines.append(f"# HELP fedspecial_{name} {text}")
            lines.append(f"# TYPE fedspecial_{name} {kind}")
        for labels, value in known:
            inside = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
            lines.append(f"fedspecial_{name}{{{inside}}} {value:.10g}")

    sites = [site for site in status["sites"] if not site["removed"]]  # nobody should be alarmed because of the others
    add("running", "gauge", "Whether a server works on the run.", [({}, float(status["state"] == "running"))])
    add("rounds_total", "counter", "Attempts at rounds.", [({}, status["rounds"]["recorded"])])
    if last := status["rounds"]["last"]:
        add("task", "gauge", "Task of the last recorded round, counted from 1.", [({}, last["task"])])
        add("round", "gauge", "The last recorded round of the task, counted from 1.", [({}, last["round"] + 1)])
    answers = [({"site": s["name"]}, _seconds(s["last_reply"])) for s in sites]
    add("site_last_reply_timestamp_seconds", "gauge", "When the site last answered.", answers)
    for name, key, kind, text in (
        ("site_connected", "connected", "gauge", "Whether the site is connected."),
        ("site_updates_total", "used", "counter", "Updates of the site that were used."),
        ("site_refusals_total", "refused", "counter", "Replies of the site that were refused."),
        ("site_rounds_late", "missed", "gauge", "Requests since the site's last usable reply."),
        ("site_reply_seconds", "reply_seconds", "gauge", "Duration of the site's last reply."),
        ("site_waiting_seconds", "waiting_seconds", "gauge", "Age of the oldest unanswered request."),
    ):
        add(name, kind, text, [({"site": s["name"]}, None if s[key] is None else float(s[key])) for s in sites])
    scores = [
        ({"domain": d, "site": s}, value) for d, values in status["accuracy"].items() for s, value in values.items()
    ]
    add("accuracy", "gauge", "Main metric after the last finished task.", scores)
    if status["gate"]:
        add(
            "model_published",
            "gauge",
            "Whether the last task's model passed.",
            [({}, float(status["gate"]["publish"]))],
        )
    if status["privacy"]:
        add("privacy_epsilon", "gauge", "Privacy spent.", [({}, _number(status["privacy"]["ε"]))])
    intact = (status["audit"] or {}).get("state") == "verified"
    add("audit_log_intact", "gauge", "Whether the audit log is intact.", [({}, float(intact))])
    return "\n".join(lines) + "\n"


def _number(text: str) -> float | None:
    """A number of the status that is a text; None where it was not finite."""
    with contextlib.suppress(ValueError):
        return float(text)
    return None


def _seconds(text: str | None) -> float | None:
    """A time of sites.json as seconds since 1970; None if there is none."""
    with contextlib.suppress(TypeError, ValueError):
        return float(calendar.timegm(time.strptime(text or "", "%Y-%m-%dT%H:%M:%SZ")))
    return None


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def metrics_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """Serves /metrics on this machine only; port 0 takes a free one."""
    status_of(folder)  # a wrong folder is reported before the server starts

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not names_this_machine(self.headers.get("Host")):
                self.send_error(403)
                return
            if self.path != "/metrics":
                self.send_error(404)
                return
            try:
                body = prometheus_text(status_of(folder)).encode()
            except (InputError, OSError, ValueError) as error:
                self.send_error(500, type(error).__name__)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """A scrape every few seconds is not worth a line."""

    return ThreadingHTTPServer((HOST, port), Handler)
