"""The commands `fedspecial data list`, `check` and `show`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import factories
import pytest
from PIL import Image

from fedspecial.data import check as checking

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDSPECIAL_DATA", raising=False)


def call(*arguments: str) -> Any:
    from typer.testing import CliRunner

    from fedspecial.cli.data import app

    return CliRunner().invoke(app, list(arguments))


def test_list_shows_order_sizes_licence_and_source(tmp_path: Path) -> None:
    factories.digit10(tmp_path)
    text = call("list", "--data", str(tmp_path)).output
    assert "1. usps                7,291 + 2,007; found 30 + 20" in text
    assert "2. svhn                73,257 + 26,032; found 30 + 20" in text
    assert "1. sketch              3,929; found nothing" in text
    assert "licence: CC BY 4.0" in text
    assert "get it: svhn: http://ufldl.stanford.edu" in text


def test_list_needs_no_data_folder() -> None:
    result = call("list")
    assert result.exit_code == 0
    assert "found nothing" in result.output


def test_less_than_published_is_reported_and_fails_only_with_strict(tmp_path: Path) -> None:
    factories.digit10(tmp_path)
    arguments = ["check", "digit10", "--data", str(tmp_path)]
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    assert (
        "smaller usps: 30 train, 20 test, 3×32×32, 10 labels; smaller than published (7,291 + 2,007)" in result.output
    )
    assert "4 domains agree in shape and labels" in result.output
    assert call(*arguments, "--strict").exit_code == 2


def test_missing_files_are_named_with_their_source(tmp_path: Path) -> None:
    factories.digit10(tmp_path)
    (tmp_path / "SVHN/test_32x32.mat").unlink()
    result = call("check", "digit10", "--data", str(tmp_path))
    assert result.exit_code == 2
    assert "svhn: SVHN/test_32x32.mat is missing (get it from http://ufldl.stanford.edu/housenumbers/)" in result.output


def test_settings_select_what_is_checked(tmp_path: Path) -> None:
    factories.digit10(tmp_path)
    result = call("check", "digit10", "domains=femnist,mnist", "--data", str(tmp_path))
    assert "femnist: 30 train" in result.output
    assert "usps" not in result.output


def test_unreadable_samples_exit_with_2_unless_they_are_skipped(tmp_path: Path) -> None:
    factories.fdu(tmp_path)
    path = tmp_path / "FDU-MTL/books.task.test"
    path.write_bytes(path.read_bytes() + b"1\tcaf\xe9\n")
    stop = call("check", "fdu-mtl", "on_bad=stop", "--data", str(tmp_path))
    assert stop.exit_code == 2
    assert "row 21: not UTF-8" in stop.output
    assert call("check", "fdu-mtl", "on_bad=skip", "--data", str(tmp_path)).exit_code == 0


def test_check_reads_the_files_even_if_they_are_cached(tmp_path: Path) -> None:
    factories.tree(tmp_path / "mine", ("a", "b"), ("cat", "dog"), 5)
    arguments = ["check", "folders", "--data", str(tmp_path / "mine")]
    assert call(*arguments).exit_code == 0
    image = tmp_path / "mine/a/cat/001.png"
    damaged = bytearray(image.read_bytes())
    damaged[20:40] = bytes(20)
    stat = image.stat()
    image.write_bytes(damaged)
    import os

    os.utime(image, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert call(*arguments).exit_code == 2


def test_other_content_is_noticed_by_its_checksum(tmp_path: Path) -> None:
    factories.digit10(tmp_path)
    found = list(checking.check("digit10", data=tmp_path, domains=("mnist",)))
    assert "checksum of its content differs from published" in found[0].line
    assert found[0].level == "note"


@pytest.mark.usefixtures("drawn_figures")
@pytest.mark.parametrize("kind", ["images", "text", "table", "sites"])
def test_show_draws_one_figure(tmp_path: Path, kind: str) -> None:
    mine, out = tmp_path / "mine", tmp_path / "figures/mine.png"
    mine.mkdir()
    match kind:
        case "images":
            factories.tree(mine, ("a", "b"), ("cat", "dog"), 12)
        case "sites":
            for site in ("north", "south"):
                factories.tree(mine / site, ("a", "b"), ("cat", "dog"), 12)
        case "text":
            factories.jsonl(mine / "t.jsonl")
        case "table":
            lines = [f"d{n % 2},{n // 2 % 2},{n}" for n in range(60)]
            (mine / "t.csv").write_text("domain,label,age\n" + "\n".join(lines))
    result = call("show", "folders", "clients=3", "clients_per_round=3", "--data", str(mine), "--out", str(out))
    assert result.exit_code == 0, result.exception
    with Image.open(out) as figure:
        assert figure.width > 1000


def test_show_divides_the_samples_as_a_run_would(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("domain,label,age\n" + "\n".join(f"d,{n % 2},{n}" for n in range(60)))
    given = ["clients=3", "clients_per_round=3", "partition_by=ward", "--data", str(tmp_path)]
    result = call("show", "folders", *given, "--out", str(tmp_path / "mine.png"))
    assert result.exit_code == 2
    assert "partition_by=ward: domain 'd' has no such column" in result.output


def test_a_missing_data_folder_is_reported_in_one_line() -> None:
    result = call("show", "pacs")
    assert result.exit_code == 2
    assert "name their folder with --data or FEDSPECIAL_DATA" in result.output


def test_an_unknown_setting_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    result = call("check", "digit10", "domain=usps", "--data", str(tmp_path))
    assert result.exit_code == 2
    assert "did you mean 'domains'" in result.output


def test_the_data_of_a_regression_can_be_checked(tmp_path: Path) -> None:
    rows = [f"{'AB'[row % 2]},{row % 7},{10 * row}" for row in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["domain,age,dose", *rows]) + "\n")
    arguments = ("check", "folders", "--data", str(tmp_path / "a.csv"), "label_column=dose", "objective=regression")
    assert "A: 14 train, 6 test, 1, 1 targets" in call(*arguments).output
