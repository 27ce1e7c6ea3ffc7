"""JSON lines: one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedspecial.data.formats.text_lines import lines
from fedspecial.data.loading.bad_rows import BadRows
from fedspecial.errors import did_you_mean


def read(path: Path, display_name: str, fields: Sequence[str], bad: BadRows) -> list[tuple[int, dict[str, Any]]]:
    """Row numbers from 0 and objects; a row that lacks one of `fields`, or has an empty list there, is bad."""
    found = []
    for row, line in lines(path, display_name, bad):
        try:
            item = json.loads(line)
        except ValueError as error:
            bad.add(row, f"{display_name}: row {row + 1}: not JSON ({error})")
            continue
        missing = [name for name in fields if not isinstance(item, dict) or item.get(name) in (None, [])]
        if missing:
            near = did_you_mean(missing[0], item) if isinstance(item, dict) else ""
            bad.add(row, f"{display_name}: row {row + 1}: no field '{missing[0]}'{near}")
            continue
        found.append((row, item))
    return found
