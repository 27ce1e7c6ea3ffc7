"""The committed pages about results are made from the committed records and texts, by any clone, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedspecial.paper.claims.base import COUNTED, KIND_NOTES, UNTESTED, ClaimKind
from fedspecial.paper.documentation import FIGURES, documents
from fedspecial.paper.grid import StudyRequest
from fedspecial.paper.rates import record_rates
from fedspecial.paper.registry import STUDIES
from fedspecial.paper.reproducibility import MARKS
from fedspecial.paper.run_records import write_records
from fedspecial.paper.summary import FOLDER, SUMMARY
from paper.study_factories import write_studies

ROOT = Path(__file__).parents[2]
SCIENCE = ROOT / "docs" / "science"


def test_the_committed_pages_are_those_of_the_records_and_texts() -> None:
    """If this fails: make reference."""
    found = documents(ROOT / "results")
    made = found.pages
    committed = [SCIENCE / SUMMARY, *(SCIENCE / FOLDER).glob("*.md")]
    assert {path.relative_to(SCIENCE).as_posix(): path.read_text(encoding="utf-8") for path in committed} == made
    navigation = re.findall(rf"science/({FOLDER}/.*)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert navigation == [name for name in made if name != SUMMARY]
    drawn = [path.stem for path in (ROOT / "docs" / FIGURES).iterdir()]
    assert sorted(drawn) == sorted(figure.stem for figure in found.figures)


@pytest.fixture(scope="module")
def records(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of two methods of `main` with two seeds, without run directories."""
    folder = tmp_path_factory.mktemp("records")
    requests = [StudyRequest("main", "cpu", (25, 225), None, ("special", "fedavg"))]
    write_records(write_studies(folder / "studies", finished_run, requests), folder / "results")
    return folder / "results"


@pytest.fixture(scope="module")
def made(records: Path) -> dict[str, str]:
    return documents(records).pages


def claim_rows(text: str) -> list[list[str]]:
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row for row in rows if len(row) == 4 and row[3] in MARKS.values()]


def kind_of(claim: str) -> ClaimKind:
    notes = {f" *({note})*": kind for kind, note in KIND_NOTES.items() if note}
    return next((kind for note, kind in notes.items() if claim.endswith(note)), ClaimKind.PAPER)


def test_a_study_has_a_page_if_one_of_its_runs_has_a_record(made: dict[str, str]) -> None:
    # The others read further metrics from the runs of main, or contain some of its runs.
    assert {f"{FOLDER}/{name}.md" for name in ("main", "location", "per-task", "costs", "rounds")} <= set(made)
    assert f"{FOLDER}/participation.md" not in made
    assert "Digit-10: no recorded run" not in made[f"{FOLDER}/main.md"]
    assert "PACS: no recorded run" not in made[f"{FOLDER}/main.md"]
    assert "VLCS: no recorded run." in made[f"{FOLDER}/main.md"]


def test_the_page_of_a_study_shows_its_figures_of_the_records(records: Path) -> None:
    found = documents(records)
    stems = {figure.stem for figure in found.figures}
    assert {"main-cpu-digit10", "main-cpu-pacs"} <= stems
    assert "main-cpu-vlcs" not in stems, "no record"
    assert "](../../figures/results/main-cpu-digit10.svg)" in found.pages[f"{FOLDER}/main.md"]
    shown = re.findall(r"\]\(../../figures/results/(.*)\.svg\)", "".join(found.pages.values()))
    assert sorted(shown) == sorted(stems)


def test_a_sweep_with_one_value_has_a_page_and_no_figure(records: Path) -> None:
    """The runs of `main` are the default values of `rounds`."""
    found = documents(records)
    assert f"{FOLDER}/rounds.md" in found.pages
    assert not [figure.stem for figure in found.figures if figure.stem.startswith("rounds-")]


def test_the_pages_do_not_depend_on_the_data_of_the_machine(
    records: Path, made: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSPECIAL_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert documents(records).pages == made


@pytest.mark.parametrize("kind", ClaimKind, ids=lambda kind: kind.name)
def test_the_summary_counts_each_kind_of_claim_apart(made: dict[str, str], kind: ClaimKind) -> None:
    rows = [row for name in made if name != SUMMARY for row in claim_rows(made[name]) if kind_of(row[0]) is kind]
    tested = [row for row in rows if row[2] != "–"]
    counts = {text: sum(row[3] == MARKS[verdict] for row in tested) for verdict, text in COUNTED.items()}
    line = next(line for line in made[SUMMARY].splitlines() if line.startswith(f"- {kind.value}: "))
    shown = [f"{count} {text}" for text, count in counts.items() if count]
    assert line.partition(": ")[2].split(", ")[: len(shown)] == shown
    assert line.endswith(f" {UNTESTED}.")


def test_the_summary_names_every_study_whose_claims_were_not_tested(made: dict[str, str]) -> None:
    folded = made[SUMMARY].partition("## Not tested")[2]
    for study in STUDIES:
        if study.claims and f"{FOLDER}/{study.name}.md" not in made:
            assert f"- `{study.name}` (" in folded
    assert "SPECIAL has the highest ACC with N = 2; SPECIAL has the highest ACC with N = 6" in folded


def test_a_recorded_sweep_of_the_theory_is_shown_and_copied_as_it_is(tmp_path: Path) -> None:
    source = ROOT / "results"
    record_rates(("lam",), source, tmp_path)
    copied = tmp_path / "theory" / "theory-lam.json"
    assert copied.read_bytes() == (source / "theory" / "theory-lam.json").read_bytes()
    assert "The drift is proportional to 1/λ" in documents(tmp_path).pages[f"{FOLDER}/theory.md"]


def test_the_summary_has_one_row_per_claim_with_the_benchmarks_by_verdict(made: dict[str, str]) -> None:
    """Two seeds decide nothing, except what holds by construction, which has no row."""
    rows = [line.strip("| ").split(" | ") for line in made[SUMMARY].splitlines() if line.startswith("| ")]
    claims = [row for row in rows if f"([`main`]({FOLDER}/main.md))" in row[0] and len(row) == 4]
    forgets = [row for row in claims if row[0].startswith("SPECIAL forgets less than FedAvg")]
    assert [row[1:] for row in forgets] == [["–", "–", "too few seeds: Digit-10, PACS"]]
    assert not any("no more to clients" in row[0] for row in rows)


def test_a_claim_about_no_benchmark_has_yes_in_the_column_of_its_verdict() -> None:
    text = documents(ROOT / "results").pages[SUMMARY]
    link = f"([`theory`]({FOLDER}/theory.md))"
    assert f"| The drift is proportional to 1/λ {link} | yes | – | – |" in text
    assert f"T^(−1/2) {link} | – | yes | – |" in text


def test_the_summary_is_two_screens_long() -> None:
    """Our own questions and what was not tested are folded."""
    shown = re.sub(r"<details.*?</details>", "", documents(ROOT / "results").pages[SUMMARY], flags=re.DOTALL)
    assert "## Our own questions" in shown
    assert "(our reading)" not in shown.partition("## Studies")[0]
    assert len(shown.splitlines()) < 80
