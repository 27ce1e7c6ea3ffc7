"""What the docs say is true: examples run, every word is explained, every link leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import fedspecial
from fedspecial import methods
from fedspecial.config import Config

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])


def test_every_word_of_a_run_is_explained() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"`([a-z_0-9]+)`", page))
    assert set(Config.model_fields) <= explained
    for name in methods.names():
        assert {field.name for field in fields(methods.find(name))} <= explained


def test_every_public_name_is_on_the_api_page() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^::: fedspecial\.(\w+)$", page, re.MULTILINE))
    assert shown == set(fedspecial.__all__) - {"__version__"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_is_short_and_names_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) < 150
    assert "make demo" in readme
    assert "make test" in readme


def test_the_example_with_own_data_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "own_data.py"), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ACC ")
    assert (tmp_path / "run" / "result.json").exists()


def test_the_example_with_an_own_method_runs(tmp_path: Path) -> None:
    result = fedspecial.run(
        "digits-shift", method=f"{ROOT / 'examples' / 'own_method.py'}:Fading", fade=0.5, cap=120, rounds=1,
        domains="paper,neon", model="logistic", width=None, local_epochs=1, min_per_client=2, out=tmp_path / "run",
    )  # fmt: skip
    assert result.method == "fading"
    assert result.lam == 0.2


def test_the_projects_pages_name_no_machine() -> None:
    for page in PAGES:
        assert not re.search(r"(^|[^\w])/(work|root|home)/", page.read_text(encoding="utf-8")), page.name
