"""Every run of SPECIAL has a certificate: in its events, its result, a figure and on the console."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedspecial.cli.progress import certificate_line
from fedspecial.core.events import CertificateIssued, of_kind, read_events
from fedspecial.report.certificate import issue
from fedspecial.theory import certify
from figures import drawn
from toy_problems import images, learn

Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run_folder") / "run"
    with drawn():
        learn(folder, "special", lam=0.3, pictures=True)
    return folder


@pytest.fixture
def events(run_folder: Path) -> Events:
    return read_events(run_folder / "events.jsonl")


def test_the_certificate_of_an_unchanged_run_holds(events: Events) -> None:
    issued = of_kind(events, "certificate")
    assert [certificate["task"] for certificate in issued] == [1, 2, 3]
    assert [certificate["summary"]["status"] for certificate in issued] == ["not anchored", "holds", "holds"]
    for certificate in issued[1:]:
        assert len(certificate["rounds"]) == 3
        for entry in certificate["rounds"]:
            slack = 1 + 1e-5  # float32
            assert 0 < entry["drift"] <= slack * entry["recursion_bound"] <= slack**2 * entry["delta_cap"]
            assert entry["mu"] > 0
        assert "weights only" in certificate["summary"]["scope"]


def test_a_certificate_is_written_before_the_task_finished_event_of_its_task(events: Events) -> None:
    kinds = [event["event"] for event in events]
    assert kinds.index("certificate") + 1 == kinds.index("task_finished")


def test_a_certificate_is_computed_from_the_events_of_the_rounds_only(events: Events) -> None:
    """Computing it again from the file gives the same certificate, and so does `certify`."""
    for issued in of_kind(events, "certificate"):
        again = issue(events, issued["task"])
        assert (again.summary, again.rounds) == (issued["summary"], issued["rounds"])
    assert [task.max_drift for task in certify(events)][1:] == [
        issued["summary"]["max_drift"] for issued in of_kind(events, "certificate")[1:]
    ]


def test_the_certificate_is_in_the_result_the_readme_and_the_figure(run_folder: Path, events: Events) -> None:
    result = json.loads((run_folder / "result.json").read_text())
    assert result["certificates"] == [issued["summary"] for issued in of_kind(events, "certificate")]
    assert "in 2 of 2 anchored tasks (weights only)" in (run_folder / "README.md").read_text()
    assert (run_folder / "drift.png").read_bytes().startswith(b"\x89PNG")
    assert not list(run_folder.glob(".drift*"))


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "special-c"])
def test_without_an_anchor_on_the_server_there_is_no_certificate(tmp_path: Path, method: str) -> None:
    assert learn(tmp_path / "run", method, pictures=True).certificates is None
    assert not (tmp_path / "run" / "drift.png").exists()
    assert "ertificate" not in (tmp_path / "run" / "README.md").read_text()
    for issued in of_kind(read_events(tmp_path / "run" / "events.jsonl"), "certificate"):
        assert issued["summary"]["status"] == "not anchored"
        assert issued["rounds"] == []


def scaled(name: str, factor: float) -> Callable[[dict[str, Any]], None]:
    def change(event: dict[str, Any]) -> None:
        event[name] *= factor

    return change


@pytest.mark.parametrize("change", [scaled("drift", 5), scaled("max_client_delta", 0.01)])
def test_a_run_that_contradicts_itself_is_reported_as_a_bug(
    events: Events, change: Callable[[dict[str, Any]], None]
) -> None:
    (last,) = (event for event in of_kind(events, "round") if (event["task"], event["round"]) == (2, 2))
    change(last)
    certificate = issue(events, 2)
    assert certificate.summary["status"] == "bug in the run"
    assert "this is a bug in the run" in certificate_line(certificate)


def test_a_violated_bound_with_an_estimated_constant_is_reported_as_a_wrong_constant(events: Events) -> None:
    for event in of_kind(events, "round"):
        event["max_grad"] = 1e-6
    certificate = issue(events, 3)
    assert certificate.summary["status"] == "wrong constant"
    assert "a constant is wrong" in certificate_line(certificate)


def test_bounds_from_gradient_norms_are_left_out_where_steps_are_not_plain_gradients(events: Events) -> None:
    for event in of_kind(events, "round"):
        event |= {"max_grad": 1e-6, "plain_sgd": False}
    assert issue(events, 3).summary["status"] == "holds"


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adamw", "client_lr": 0.01},
        {"momentum": 0.9},
        {"weight_decay": 1.0, "client_lr": 0.001},
        {"weighting": "samples"},
        {"lam": 0.0},
    ],
)
def test_certificates_hold_whatever_the_clients_do(tmp_path: Path, settings: dict[str, Any]) -> None:
    result = learn(tmp_path / "run", "special", **{"lam": 0.3, "estimate": True, **settings})
    assert [task["status"] for task in result.certificates or []] == ["not anchored", "holds", "holds"]


@pytest.mark.parametrize("policy", ["average", "mean-only", "local", "bank"])
def test_batch_norm_statistics_are_not_part_of_the_certificate(tmp_path: Path, policy: str) -> None:
    settings = {"model": "cnn", "width": 4, "batch_norm": policy, "client_lr": 0.01, "estimate": True}
    result = learn(tmp_path / "run", "special", images(), lam=0.3, **settings)
    assert [task["status"] for task in result.certificates or []] == ["not anchored", "holds"]


def test_the_console_shows_the_certificate_in_one_line(events: Events) -> None:
    issued = of_kind(events, "certificate")[1]
    line = certificate_line(CertificateIssued(2, issued["summary"], issued["rounds"]))
    assert line.startswith("task 2: ")
    assert line.endswith("(weights only)")
    assert "\n" not in line


def test_the_legend_of_the_drift_is_below_the_panels(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a panel it would cover the curves."""
    from fedspecial.core.events import read_events
    from fedspecial.theory import plots
    from fedspecial.theory.certificates.run import certify_run

    figures: list[Any] = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: figures.append(figure))
    plots.plot_drift(certify_run(read_events(run_folder / "events.jsonl")), "drift.png")
    (figure,) = figures
    assert all(axes.get_legend() is None for axes in figure.axes)
    assert len(figure.legends) == 1
    assert [text.get_text() for text in figure.legends[0].get_texts()][:2] == ["measured drift", "bound: recursion"]
