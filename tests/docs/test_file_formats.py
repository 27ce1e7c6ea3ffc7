"""The page on file formats names every file of a run directory and every field of its events and results."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import fedspecial
from fedspecial.core import clock_events, events, extension, stream_events
from fedspecial.report.result import Result

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "file-formats.md").read_text(encoding="utf-8")
EVENTS = [
    cls
    for cls in (
        *vars(events).values(),
        *vars(clock_events).values(),
        *vars(stream_events).values(),
        extension.RunExtended,
    )
    if dataclasses.is_dataclass(cls) and isinstance(cls, type) and isinstance(getattr(cls, "event", None), str)
]


def section(heading: str) -> str:
    """The text below a heading, up to the next heading of the same or a higher level."""
    level = heading.split(" ")[0]
    text = PAGE.split(f"\n{heading}\n", 1)[1]
    return re.split(rf"\n#{{1,{len(level)}}} ", text)[0]


def names(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.event)
def test_every_event_is_described_with_all_its_fields(event: type) -> None:
    fields = {field.name for field in dataclasses.fields(event)}
    if event is events.RunResumed:  # for listeners only, so it has no section
        assert {"run_resumed", *fields} <= names(PAGE)
    else:
        assert fields <= names(section(f"### {event.event}"))


def test_every_field_of_the_result_is_described() -> None:
    written = {field.name for field in dataclasses.fields(Result) if field.compare}  # the others are not in the file
    assert written <= names(section("## result.json"))


def test_every_file_of_a_run_directory_is_listed(tmp_path: Path, rendered: None) -> None:
    out = tmp_path / "run"
    fedspecial.run("digits-shift", domains="paper,neon", cap=100, rounds=1, model="logistic", width=None, out=out)
    tree = section("## The run directory").split("```")[1]
    listed = {line.split()[0].rstrip("/") for line in tree.splitlines()[2:] if line.strip()}
    written = {path.name for path in out.rglob("*") if path.parent.name != "blobs"}
    assert written == listed


def test_every_field_about_a_run_is_described(tmp_path: Path, rendered: None) -> None:
    from fedspecial.runs import directory

    out = tmp_path / "run"
    fedspecial.run("digits-shift", domains="paper,neon", cap=100, rounds=1, model="logistic", width=None, out=out)
    assert set(directory.about(out)) <= names(section("## config.yaml"))
