"""The models of the small runs in `cases.py` equal the recorded ones bit for bit.

After a change that is meant to change them, ``python tests/golden/record.py`` records them again,
and `README.md` says why.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cases import CASES, learn, machine

RECORDED = json.loads((Path(__file__).parent / "hashes.json").read_text(encoding="utf-8"))
HASHES = RECORDED["hashes"]

pytestmark = pytest.mark.usefixtures("rendered")


@pytest.mark.parametrize("name", CASES)
def test_a_run_ends_with_the_recorded_model(name: str, tmp_path: Path) -> None:
    recorded, current = ({key: found[key] for key in ("cpu", "torch")} for found in (RECORDED, machine()))
    if recorded != current:
        pytest.skip(
            f"recorded on {recorded['cpu']} with torch {recorded['torch']}; "
            f"this is {current['cpu']} with torch {current['torch']}"
        )
    assert learn(name, tmp_path) == HASHES[name]


def test_every_case_has_a_different_model() -> None:
    """No two runs have the same model, except the killed run and the same run without a kill."""
    assert HASHES.keys() == CASES.keys()
    assert HASHES["killed-and-resumed"] == HASHES["method-special"]
    assert len(set(HASHES.values())) == len(HASHES) - 1
