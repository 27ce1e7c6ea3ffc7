"""The models of some small runs are, bit for bit, the recorded ones; `cases.py` says which runs these are.

Where that was meant to change, ``python tests/golden/record.py`` records them anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cases import CASES, here, learn

RECORDED = json.loads((Path(__file__).parent / "hashes.json").read_text(encoding="utf-8"))
HASHES = RECORDED["hashes"]

pytestmark = pytest.mark.usefixtures("rendered")


@pytest.mark.parametrize("name", CASES)
def test_a_run_ends_with_the_recorded_model(name: str, tmp_path: Path) -> None:
    there, now = ({key: machine[key] for key in ("cpu", "torch")} for machine in (RECORDED, here()))
    if there != now:
        pytest.skip(
            f"recorded on {there['cpu']} with torch {there['torch']}; this is {now['cpu']} with torch {now['torch']}"
        )
    assert learn(name, tmp_path) == HASHES[name]


def test_every_case_tells_something_that_the_others_do_not() -> None:
    """No two runs end with the same model, but for the one that was killed and the same one that was not."""
    assert HASHES.keys() == CASES.keys()
    assert HASHES["killed-and-resumed"] == HASHES["method-special"]
    assert len(set(HASHES.values())) == len(HASHES) - 1
