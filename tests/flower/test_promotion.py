"""The promotion gate: accuracy on earlier domains must be kept, and an unknown domain does not pass."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspecial.errors import InputError
from fedspecial.flower.governance.promotion import (
    Count,
    Decision,
    PromotionLimits,
    capped_weights,
    decide,
    pooled,
    publish,
    reference_at_own_task,
    write_decision,
)

STRICT = PromotionLimits(max_drop=0.02, max_site_drop=0.05)


def scores(**sites: int) -> dict[str, Count]:
    """Correct predictions of 100 at each site."""
    return {site: Count(correct, 100) for site, correct in sites.items()}


def test_a_model_without_any_drop_is_published() -> None:
    same = {"ct": scores(north=90, south=80)}
    decision = decide(["ct"], same, same, STRICT)
    assert decision.publish
    assert decision.reason == "published: accuracy was kept on every earlier domain (ct)"
    assert decision.domains[0].drop == 0


@pytest.mark.parametrize(("south", "published"), [(76, True), (75, False)])
def test_the_overall_limit_is_exact(south: int, published: bool) -> None:
    """Two points of 200 samples are four; five are too many."""
    before, after = {"ct": scores(north=90, south=80)}, {"ct": scores(north=90, south=south)}
    decision = decide(["ct"], after, before, PromotionLimits(max_drop=0.02, max_site_drop=1))
    assert decision.publish is published
    assert ("accuracy dropped by 2.50 points over all sites (limit 2)" in decision.reason) is not published


@pytest.mark.parametrize(("south", "published"), [(75, True), (74, False)])
def test_the_worst_site_counts_even_if_the_mean_is_within_the_limit(south: int, published: bool) -> None:
    before, after = {"ct": scores(north=80, south=80)}, {"ct": scores(north=95, south=south)}
    decision = decide(["ct"], after, before, STRICT)
    assert decision.publish is published
    assert decision.domains[0].worst_site == "south"
    assert ("accuracy dropped by 6.00 points at site south (limit 5)" in decision.reason) is not published


def test_a_domain_that_no_site_can_test_is_unknown_and_does_not_pass() -> None:
    before = {"ct": scores(north=90), "mr": scores(south=90)}
    after = {"ct": scores(north=90)}
    decision = decide(["ct", "mr"], after, before, STRICT)
    assert not decision.publish
    assert [verdict.status for verdict in decision.domains] == ["kept", "unknown"]
    assert "mr: no site tested it again (south did before)" in decision.reason
    allowed = decide(["ct", "mr"], after, before, PromotionLimits(allow_unknown=True))
    assert allowed.publish
    assert allowed.domains[1].status == "unknown"
    assert "no site could test mr" in allowed.reason


def test_a_domain_never_tested_is_unknown() -> None:
    assert decide(["ct"], {}, {}).domains[0].reason == "no site has tested it"


def test_a_site_that_left_is_named_and_does_not_count() -> None:
    before = {"ct": scores(north=90, south=50)}
    after = {"ct": scores(north=90)}
    (verdict,) = decide(["ct"], after, before, STRICT).domains
    assert verdict.status == "kept"
    assert verdict.drop == 0
    assert verdict.untested_sites == ("south",)
    assert "not tested again at south" in verdict.reason


def test_the_model_of_the_first_task_is_published() -> None:
    assert decide([], {}, {}).publish


def test_the_reference_of_a_domain_is_the_score_at_the_end_of_its_own_task() -> None:
    history = {"ct": {"ct": scores(n=80)}, "mr": {"ct": scores(n=85), "mr": scores(n=70)}}
    assert reference_at_own_task(history) == {"ct": scores(n=80), "mr": scores(n=70)}


counts = st.integers(0, 50).map(lambda correct: Count(correct, 50))
tables = st.dictionaries(st.sampled_from("abc"), st.dictionaries(st.sampled_from("xyz"), counts, min_size=1))


@given(tables, tables)
def test_a_published_model_has_kept_every_domain(candidate: dict, reference: dict) -> None:
    decision = decide("abc", candidate, reference, STRICT)
    assert decision.publish == all(verdict.status == "kept" for verdict in decision.domains)
    for verdict in decision.domains:
        tested = candidate.get(verdict.domain, {}).keys() & reference.get(verdict.domain, {}).keys()
        assert (verdict.status == "unknown") == (not tested)


@given(tables)
def test_stricter_limits_never_publish_more(table: dict) -> None:
    reference = {domain: {site: Count(50, 50) for site in "xyz"} for domain in "abc"}
    loose = decide("abc", table, reference, PromotionLimits(0.3, 0.4)).publish
    assert loose or not decide("abc", table, reference, PromotionLimits(0.1, 0.2)).publish


@pytest.mark.parametrize(("correct", "total"), [(3, 2), (-1, 2), (0, 0)])
def test_invalid_counts_are_refused(correct: int, total: int) -> None:
    with pytest.raises(InputError, match=f"{correct} of {total}"):
        Count(correct, total)


@pytest.mark.parametrize("settings", [{"max_drop": -0.1}, {"max_site_drop": 2.0}, {"max_drop": float("nan")}])
def test_invalid_limits_are_named(settings: dict) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        PromotionLimits(**settings)


def passed() -> Decision:
    return decide(["ct"], {"ct": scores(n=90)}, {"ct": scores(n=90)})


def test_a_published_model_has_its_hashes_and_its_card(tmp_path: Path) -> None:
    folder = publish(
        tmp_path / "models" / "v1", b"weights", decision=passed(), card="# A model", model_sha256="ab", audit_head="cd"
    )
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    stored = json.loads((folder / "promotion.json").read_text())
    digest = hashlib.sha256(b"weights").hexdigest()
    assert (stored["publish"], stored["file_sha256"], stored["audit_head"]) == (True, digest, "cd")
    card = (folder / "README.md").read_text()
    assert card.startswith("# A model\n")
    assert digest in card
    assert {path.name for path in tmp_path.joinpath("models").iterdir()} == {"v1"}


def test_a_model_that_fails_the_gate_is_not_published_but_the_reason_is_written(tmp_path: Path) -> None:
    decision = decide(["ct"], {"ct": scores(n=50)}, {"ct": scores(n=90)})
    with pytest.raises(InputError, match="ct: accuracy dropped by 40"):
        publish(tmp_path / "v1", b"weights", decision=decision, card="", model_sha256="ab")
    assert not list(tmp_path.iterdir())
    write_decision(tmp_path / "promotion.json", decision, {"model_sha256": "ab"})
    stored = json.loads((tmp_path / "promotion.json").read_text())
    assert stored["publish"] is False
    assert stored["domains"][0]["status"] == "dropped"


def test_a_failed_publication_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        if path.name == "promotion.json":
            raise OSError(28, "No space left on device")
        path.write_bytes(data)

    monkeypatch.setattr("fedspecial.core.files.write_atomic", full)
    with pytest.raises(InputError, match="No space left"):
        publish(tmp_path / "v1", b"weights", decision=passed(), card="", model_sha256="ab")
    assert not list(tmp_path.iterdir())


def test_a_published_model_is_never_replaced(tmp_path: Path) -> None:
    publish(tmp_path / "v1", b"one", decision=passed(), card="", model_sha256="ab")
    with pytest.raises(InputError, match="exists already"):
        publish(tmp_path / "v1", b"two", decision=passed(), card="", model_sha256="ab")
    assert (tmp_path / "v1" / "model.safetensors").read_bytes() == b"one"


def test_a_model_that_guesses_is_not_published_even_without_an_earlier_domain() -> None:
    """9.9 % on ten classes: nothing dropped, since there was nothing before."""
    tested = {"ct": {"north": Count(99, 1000)}}
    decision = decide([], tested, {}, PromotionLimits(), current="ct", classes=10)
    assert not decision.publish
    assert "ct: accuracy is 9.90 %, no better than guessing one of 10 classes" in decision.reason
    assert decide([], tested, {}, PromotionLimits(above_chance=False), current="ct", classes=10).publish
    assert decide([], {"ct": {"north": Count(101, 1000)}}, {}, PromotionLimits(), current="ct", classes=10).publish


def test_the_accuracy_floor_is_exact_and_holds_on_every_learned_domain() -> None:
    limits = PromotionLimits(min_accuracy=0.8, max_drop=1, max_site_drop=1)
    reference = {"ct": scores(n=90)}
    for correct, published in ((80, True), (79, False)):
        candidate = {"ct": scores(n=correct), "mr": scores(n=95)}
        decision = decide(["ct"], candidate, reference, limits, current="mr", classes=2)
        assert decision.publish is published
        assert ("ct: accuracy is 79.00 % (min_accuracy=0.8)" in decision.reason) is not published


@pytest.mark.parametrize(("total", "published"), [(20, True), (19, False)])
def test_too_few_tested_samples_are_no_evidence(total: int, published: bool) -> None:
    decision = decide([], {"ct": {"n": Count(total, total)}}, {}, PromotionLimits(), current="ct", classes=2)
    assert decision.publish is published
    assert ("ct: only 19 test samples over all sites (min_tested=20)" in decision.reason) is not published
    assert not decide([], {}, {}, PromotionLimits(), current="ct", classes=2).publish


def test_a_site_cannot_fill_the_matrix_with_a_billion_test_samples() -> None:
    """Three honest sites with 50 % of 100 each: the fourth counts as 60 %, by hand 0.4·0.5 + 0.6·1."""
    honest = {site: Count(50, 100) for site in "abc"}
    assert pooled({**honest, "d": Count(10**9, 10**9)}, 0.6) == Fraction(8, 10)
    assert pooled(honest, 0.6) == Fraction(1, 2)
    assert pooled({"a": Count(1, 1)}, 0.6) == 1


def test_capped_weights_by_hand() -> None:
    assert capped_weights({"a": 300, "b": 100}, 0.6) == {"a": 150, "b": 100}
    assert capped_weights({"a": 51, "b": 50}, 0.6) == {"a": 51, "b": 50}
    assert capped_weights({"a": 300, "b": 100}, 0.3) == {"a": 1, "b": 1}
    assert capped_weights({"a": 900, "b": 900, "c": 100}, 0.4) == {"a": 200, "b": 200, "c": 100}


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 10**9), min_size=2), st.floats(0.5, 1))
def test_no_site_has_more_than_its_share_and_the_order_is_kept(totals: dict[str, int], share: float) -> None:
    weights = capped_weights(totals, share)
    assert max(weights.values()) <= Fraction(str(share)) * sum(weights.values())
    assert all(weights[a] <= weights[b] for a in totals for b in totals if totals[a] <= totals[b])
