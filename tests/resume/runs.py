"""Compare two runs, and read the files of a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedspecial.core.events import EXECUTION_EVENTS, read_events


def without_times(content: Any) -> Any:
    """The content without the fields that are wall-clock times."""
    if isinstance(content, dict):
        return {key: without_times(value) for key, value in content.items() if not key.startswith("seconds")}
    return [without_times(part) for part in content] if isinstance(content, list) else content


def result_events(folder: Path) -> list[dict[str, Any]]:
    """The events of a run, except those about how it was executed."""
    return [event for event in read_events(folder / "events.jsonl") if event["event"] not in EXECUTION_EVENTS]


def assert_same_run(found: Path, expected: Path) -> None:
    """Same events in the same order, same result and same model, apart from times."""
    first, second = (without_times(result_events(folder)) for folder in (found, expected))
    for ours, theirs in zip(first, second, strict=True):
        assert ours == theirs
    results = [without_times(json.loads((folder / "result.json").read_text())) for folder in (found, expected)]
    assert results[0] == results[1]
    assert results[0]["model_sha256"] == first[-1]["model_sha256"]
    assert (found / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()
    assert {path.name for path in found.iterdir()} == {path.name for path in expected.iterdir()}


def contents(folder: Path) -> dict[str, bytes]:
    """Every file with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
