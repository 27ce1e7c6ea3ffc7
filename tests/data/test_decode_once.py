"""The cache: written once, found by content, never partial, and rebuilt if damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import factories
import numpy as np
import pytest

from fedspecial.data import cache as caching
from fedspecial.data import catalogue
from fedspecial.data.loading.bad_rows import BadRows, Chunk
from fedspecial.errors import InputError


class Builder:
    """Counts its calls."""

    def __init__(self, bad_row: int | None = None, stop_after: int | None = None) -> None:
        self.calls, self.bad_row, self.stop_after = 0, bad_row, stop_after

    def __call__(self, bad: BadRows) -> Iterator[Chunk]:
        self.calls += 1
        for row in range(4):
            if row == self.stop_after:
                raise KeyboardInterrupt
            if row == self.bad_row:
                bad.add(row, f"photo.png: row {row}: damaged")
                continue
            yield np.full((1, 3, 8, 8), row, np.uint8), np.array([row])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "source.bin"
    file.write_bytes(b"some content")
    return file


def entries(cache: Path, suffix: str) -> list[Path]:
    return sorted(cache.glob(f"*{suffix}"))


def test_files_are_decoded_once(source: Path, cache: Path) -> None:
    build = Builder()
    first = caching.cached([source], {}, build, folder=cache)
    again = caching.cached([source], {}, build, folder=cache)
    assert build.calls == 1
    assert np.array_equal(first.x, again.x)
    assert again.y.tolist() == [0, 1, 2, 3]
    assert isinstance(again.x, np.memmap)


def test_an_entry_is_found_by_content_whatever_path_and_time_are(source: Path, cache: Path) -> None:
    build = Builder()
    caching.cached([source], {}, build, folder=cache)
    moved = source.with_name("copy.bin")
    shutil.copy(source, moved)
    os.utime(moved, (1, 1))
    caching.cached([moved], {}, build, folder=cache)
    assert build.calls == 1
    source.write_bytes(b"same length!")
    caching.cached([source], {}, build, folder=cache)
    assert build.calls == 2


def test_another_recipe_is_another_entry(source: Path, cache: Path) -> None:
    build = Builder()
    caching.cached([source], {"size": 32}, build, folder=cache)
    caching.cached([source], {"size": 64}, build, folder=cache)
    assert build.calls == 2


@pytest.mark.parametrize("damage", ["flip", "cut", "delete", "header", "version"])
def test_a_damaged_entry_is_decoded_again(source: Path, cache: Path, damage: str) -> None:
    build, notices = Builder(), list[str]()
    caching.cached([source], {}, build, folder=cache)
    body, head = entries(cache, ".bin")[0], entries(cache, ".json")[0]
    content = bytearray(body.read_bytes())
    match damage:
        case "flip":
            content[5] ^= 1
            body.write_bytes(content)
        case "cut":
            body.write_bytes(content[:-1])
        case "delete":
            body.unlink()
        case "header":
            head.write_text("{")
        case "version":
            head.write_text(head.read_text().replace('"version": 1', '"version": 0'))
    repaired = caching.cached([source], {}, build, folder=cache, notice=notices.append)
    assert build.calls == 2
    assert repaired.x[2, 0, 0, 0] == 2
    assert "decoding again" in notices[0]


def test_an_interrupted_write_leaves_no_entry(source: Path, cache: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        caching.cached([source], {}, Builder(stop_after=2), folder=cache)
    assert entries(cache, ".bin") == entries(cache, ".json") == entries(cache, ".tmp") == []
    assert list(caching.cached([source], {}, Builder(), folder=cache).y) == [0, 1, 2, 3]


def test_skipped_samples_are_remembered(source: Path, cache: Path) -> None:
    build = Builder(bad_row=1)
    for _ in range(2):
        decoded = caching.cached([source], {}, build, folder=cache, on_bad="skip")
        assert decoded.y.tolist() == [0, 2, 3]
        assert decoded.skipped == ((1, "photo.png: row 1: damaged"),)
    assert build.calls == 1
    with pytest.raises(InputError, match=r"photo\.png: row 1"):
        caching.cached([source], {}, build, folder=cache, on_bad="stop")


def test_without_a_writable_folder_files_are_decoded_without_a_cache(source: Path, tmp_path: Path) -> None:
    blocked, notices = tmp_path / "file", list[str]()
    blocked.write_text("not a folder")
    decoded = caching.cached([source], {}, Builder(), folder=blocked / "cache", notice=notices.append)
    assert decoded.y.tolist() == [0, 1, 2, 3]
    assert "without a cache" in notices[0]


def test_writing_to_the_array_does_not_change_the_file(source: Path, cache: Path) -> None:
    decoded = caching.cached([source], {}, Builder(), folder=cache)
    decoded.x[0] = 99
    assert caching.cached([source], {}, Builder(), folder=cache).x[0, 0, 0, 0] == 0


def test_the_default_folder_follows_the_xdg_specification(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert caching.default_folder() == tmp_path / "fedspecial"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert caching.default_folder() == Path.home() / ".cache" / "fedspecial"


def test_a_second_load_decodes_no_image(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    factories.tree(tmp_path / "PACS", catalogue.entry("pacs").domains, factories.PACS_CLASSES, 4)
    first = catalogue.load("pacs", data=tmp_path, image_size=16, cache=cache)
    monkeypatch.setattr("fedspecial.data.formats.image_folders._decode_image", lambda *_: pytest.fail("decoded again"))
    again = catalogue.load("pacs", data=tmp_path, image_size=16, cache=cache)
    for one, other in zip(first.domains, again.domains, strict=True):
        assert one.train.x.equal(other.train.x)
        assert one.test.y.equal(other.test.y)
