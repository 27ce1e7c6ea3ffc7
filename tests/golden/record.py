"""Rewrite `hashes.json`, or with ``--check`` print which cases differ from it: ``python tests/golden/record.py``.

For changes that are meant to change what is learned, and for another type of CPU. It always uses a single thread.
`README.md` says which change was the reason for each new recording: add to it.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import json
import sys
import tempfile
import time
from pathlib import Path

from cases import CASES, learn, machine

FILE = Path(__file__).resolve().parent / "hashes.json"


def main() -> None:
    recorded = json.loads(FILE.read_text(encoding="utf-8"))["hashes"] if FILE.exists() else {}
    hashes = {}
    for name in CASES:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            hashes[name] = learn(name, Path(folder))
        comparison = "as recorded" if recorded.get(name) == hashes[name] else "differs from the record"
        print(f"{name:24} {hashes[name][:12]} {time.monotonic() - began:6.1f} s  {comparison}", flush=True)
    if "--check" in sys.argv:
        sys.exit(hashes != recorded)
    content = {**machine(), "threads": 1, "hashes": hashes}
    FILE.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
