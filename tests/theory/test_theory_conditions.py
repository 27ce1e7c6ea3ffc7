"""No condition passes silently, and a suggested limit is where the condition starts to fail."""

from dataclasses import replace

import pytest
from hypothesis import given
from theory_fixtures import CFG, CONSTS, configs, constants, law

from fedspecial.theory import STATEMENTS, Constants, bkt_step_max, check_conditions

BARE = Constants(2.0, 4.0)


@pytest.mark.parametrize("which", STATEMENTS)
def test_every_condition_has_both_sides_or_names_what_it_needs(which):
    for row in check_conditions(CFG, BARE, which).rows:
        if row.ok is None:
            assert row.note.startswith("needs ")
        elif row.lhs is not None:
            assert row.margin == pytest.approx(row.lhs / row.rhs)


@pytest.mark.parametrize("which", ["paper_bkt", "bkt"])
def test_conditions_with_missing_constants_never_pass(which):
    report = check_conditions(CFG, BARE, which)
    assert report.ok is not True
    assert any(row.ok is None and "alignment" in row.note for row in report.rows)


@pytest.mark.parametrize("which", [name for name in STATEMENTS if name != "paper_rate"])
def test_conditions_with_placeholders_never_pass(which):
    cfg = replace(CFG, server_lr=1e-9, client_lr=1e-9)
    assert check_conditions(cfg, CONSTS, which).ok is True
    report = check_conditions(cfg, CONSTS, which, missing=["smoothness", "local_steps"])
    assert report.ok is None


def test_statements_about_earlier_tasks_fail_for_the_first_task():
    report = check_conditions(replace(CFG, task_index=1, anchored=False), CONSTS, "bkt")
    assert report.ok is False
    assert report.rows[-1].ok is None


def test_the_unstated_condition_is_reported_separately():
    edge = replace(CFG, client_lr=1 / (8 * 5 * 4), server_lr=0.1)
    report = check_conditions(edge, CONSTS, "paper_convergence")
    (row,) = [row for row in report.rows if row.ok is False]
    assert row.note == "needed by the proof, not in the statement"


@law
@given(configs(min_task=2), constants())
def test_the_papers_rate_is_never_ok(cfg, consts):
    assert check_conditions(cfg, consts, "paper_rate").ok is False


@law
@given(configs(min_task=2), constants())
def test_suggested_learning_rates_meet_the_conditions_and_larger_ones_do_not(cfg, consts):
    limits = check_conditions(cfg, consts, "bkt").suggest()
    assert limits["client_lr"] == pytest.approx(bkt_step_max(cfg, consts) / cfg.server_lr, rel=1e-9)
    good = replace(cfg, client_lr=limits["client_lr"] * (1 - 1e-9))
    bad = replace(cfg, client_lr=limits["client_lr"] * (1 + 1e-6))
    assert check_conditions(good, consts, "bkt").ok is True
    assert check_conditions(bad, consts, "bkt").ok is False


def test_the_papers_schedule_violates_its_own_server_step_from_the_third_task():
    rows = {
        k: check_conditions(replace(CFG, task_index=k, server_lr=1 / k), CONSTS, "paper_bkt").rows[-1].ok
        for k in (2, 3, 4)
    }
    assert rows == {2: True, 3: False, 4: False}
