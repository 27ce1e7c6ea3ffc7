"""Put the table and the figure of the study `asynchrony` into docs/science/asynchrony.md.

Run from the repository, with the directory of studies (the runs take a few minutes):

    fedspecial study asynchrony --seeds 25,225,2025 --out studies
    fedspecial report studies
    python tools/docs/asynchrony.py studies
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedspecial.paper.marks import replace_between

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "science" / "asynchrony.md"
BEGIN, END = "<!-- begin: tools/docs/asynchrony.py -->", "<!-- end -->"
STEM = "asynchrony-cpu-digits-shift-clock"


def main() -> None:
    studies = Path(sys.argv[1])
    table = (studies / "tables" / f"{STEM}.md").read_text(encoding="utf-8").strip()
    page = replace_between(PAGE.read_text(encoding="utf-8"), BEGIN, END, f"\n\n{table}\n\n")
    PAGE.write_text(page, encoding="utf-8")
    (ROOT / "docs" / "figures" / "asynchrony.png").write_bytes((studies / "figures" / f"{STEM}.png").read_bytes())


if __name__ == "__main__":
    main()
