"""Versions of server and sites, what the cards of a federation say, and SpecialStrategy as the outermost strategy."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from apps import MODEL, moving_app, nodes, record
from flower_fixtures import SHORT, SITES, federate, finished, grid_of, modified, reasons_of, with_header
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from fedspecial import __version__
from fedspecial.errors import InputError
from fedspecial.flower import InProcessGrid, SpecialStrategy
from fedspecial.flower.app import wire
from fedspecial.flower.app.release import release_problem
from fedspecial.flower.logs import log_to_stderr

MAJOR, MINOR = map(int, __version__.split(".")[:2])
PATCHED, NEWER = f"{MAJOR}.{MINOR}.99", f"{MAJOR}.{MINOR + 1}.0"


def test_only_the_first_two_numbers_of_a_version_count() -> None:
    assert release_problem(__version__, "x") is None
    assert release_problem(PATCHED, "x") is None
    for other in (NEWER, f"{MAJOR + 1}.{MINOR}.0", "", "nonsense"):
        assert "the first two numbers of the version must be equal" in (release_problem(other, "x") or "")


@pytest.mark.usefixtures("rendered", "unpictured")
def test_a_site_that_is_upgraded_in_the_middle_of_a_task_is_refused_by_name_and_the_round_goes_on(
    tmp_path: Path,
) -> None:
    grid = grid_of(tmp_path)
    north, south = list(grid.contexts)[:2]
    grid.faults[north] = modified(with_header(release=NEWER, a_field_of_that_version=1))
    grid.faults[south] = modified(with_header(release=PATCHED))
    run = federate(tmp_path, grid=grid, **SHORT)
    assert finished(run)["refusals"] == {"north": 1}
    assert reasons_of(run) == {"north": {release_problem(NEWER, "the site")}}


@pytest.mark.usefixtures("rendered", "unpictured")
def test_a_site_refuses_a_server_of_another_minor_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        wire, "release_problem", lambda other, who: f"{who} is too new" if who == "the server" else None
    )
    with pytest.raises(InputError, match="only 0 sites connected"):
        federate(tmp_path, wait_seconds=0.5, **SHORT)


@pytest.mark.usefixtures("rendered", "unpictured")
def test_the_cards_tell_where_the_model_comes_from(tmp_path: Path) -> None:
    run = federate(tmp_path, **SHORT)
    card = (run / "README.md").read_text()
    assert "simulated" not in card
    assert "by a federation of 4 sites (north, south, west, east) on Flower, a trial" in card
    assert "Made by: `flwr run` with the settings in `config.yaml`" in card
    published = (run / "published" / "task-1" / "README.md").read_text()
    assert "Classes, in the order of the outputs: 0, 1, 2" in published
    assert "normalised with mean" in published
    assert "of uint8" in published
    assert "- task 1: 1 completed rounds" in published
    for site in SITES:
        assert f"| {site} | 1 | 1 |" in published


def small(**settings: Any) -> FedAvg:
    return FedAvg(min_train_nodes=2, min_available_nodes=2, fraction_evaluate=0.0, **settings)


def private(inner: Any) -> Any:
    return DifferentialPrivacyServerSideFixedClipping(inner, 0.1, 1.0, 2)


def start(strategy: Any) -> None:
    strategy.start(InProcessGrid(moving_app(), nodes(2)), record(MODEL), num_rounds=1)


def test_special_refuses_to_be_wrapped_and_may_wrap() -> None:
    start(SpecialStrategy(private(small())))
    with pytest.raises(InputError, match=r"write SpecialStrategy\(DifferentialPrivacyServerSideFixedClipping\(…\)\)"):
        start(private(SpecialStrategy(small())))


def test_a_wrapper_without_a_summary_is_refused_in_the_first_round() -> None:
    class Wrapper(FedAvg):
        def __init__(self, inner: Any) -> None:
            super().__init__(fraction_evaluate=0.0)
            self.inner = inner

        def summary(self) -> None:
            pass

        def configure_train(self, *arguments: Any) -> Any:
            return self.inner.configure_train(*arguments)

    with pytest.raises(InputError, match="SpecialStrategy must be outermost"):
        start(Wrapper(SpecialStrategy(small())))


def test_special_s_line_appears_without_any_configuration(capfd: pytest.CaptureFixture[str]) -> None:
    log, root = logging.getLogger("fedspecial.flower"), logging.getLogger()
    before, handlers, level, propagate = list(root.handlers), list(log.handlers), log.level, log.propagate
    root.handlers, log.handlers = [], []
    try:
        start(SpecialStrategy(small(), lam=0.5))
        log_to_stderr()  # a second call adds no second handler
        assert len(log.handlers) == 1
    finally:
        root.handlers, log.handlers, log.level, log.propagate = before, handlers, level, propagate
    assert "SPECIAL: lam=0.5, server_lr=1, tasks started by begin_task(), quorum=0.5" in capfd.readouterr().err
