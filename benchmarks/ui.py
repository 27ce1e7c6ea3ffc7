"""The page of ``fedspecial ui``: time to the first content and memory of the server, with generated files.

A folder of 1,000 runs, and a run of 100,000 rounds whose event log has about 60 MB. The time is measured in Chromium,
from the request to the first frame that shows lines of the overview, or curves of the run. The server runs in a process
of its own, whose peak resident memory is measured.

    python benchmarks/ui.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / part) for part in ("tests", "tests/ui")]

from run_factory import append, round_finished, write_run  # noqa: E402

from browser import Browser, chromium  # noqa: E402

PAINT = "performance.getEntriesByType('paint').find(e => e.name === 'first-contentful-paint')?.startTime"
OBSERVER = """addEventListener('DOMContentLoaded', () => {
  const look = () => {
    if (window.contentAt !== undefined || !(CONDITION)) return;
    requestAnimationFrame(() => { window.contentAt ??= performance.now(); });
  };
  new MutationObserver(look).observe(document.body, {childList: true, subtree: true});
});"""


def write_folder(folder: Path, runs: int, rounds: int) -> None:
    for number in range(runs):
        write_run(folder / f"run-{number:04d}", seed=number, method=("special", "fedavg")[number % 2], rounds=8)
    long = write_run(folder / "long", stop_after=1, rounds=rounds // 2)
    accuracy = {"paper": 0.9, "neon": 0.8}
    for task in (1, 2):
        append(long, *(round_finished(task, number, accuracy) for number in range(rounds // 2)))


def seconds_until(browser: Browser, address: str, view: str, condition: str) -> tuple[float, float, float]:
    """Seconds to the first paint, to the first frame with content (both measured in the page), and to everything."""
    browser.open("about:blank", 1280)
    added = browser.command("Page.addScriptToEvaluateOnNewDocument", source=OBSERVER.replace("CONDITION", condition))
    start = time.perf_counter()
    browser.open(f"{address}#/{view}", 1280)
    while browser.evaluate("window.contentAt") is None:
        time.sleep(0.02)
    while browser.evaluate("(document.querySelector('.reading')?.textContent ?? '') !== ''"):
        time.sleep(0.05)
    total = time.perf_counter() - start
    browser.command("Page.removeScriptToEvaluateOnNewDocument", identifier=added["identifier"])
    return browser.evaluate(PAINT) / 1000, browser.evaluate("window.contentAt") / 1000, total


def peak_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(fields.get("VmHWM", fields["VmRSS"]).split()[0]) / 1024


def measure(folder: Path, repeats: int) -> None:
    command = [sys.executable, "-m", "fedspecial.cli.main", "ui", str(folder), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, chromium() as browser:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        print(f"server before the first request: {peak_megabytes(server.pid):.0f} MB")
        views = {
            "overview": ("", "document.querySelectorAll('.runs tbody tr').length >= 20"),
            "run": ("run?run=long", "document.querySelector('.chart canvas') !== null"),
        }
        for name, (view, script) in views.items():
            found = [seconds_until(browser, address, view, script) for _ in range(repeats)]
            first = ", ".join(f"{value:.2f}" for value in found[0])
            medians = ", ".join(f"{statistics.median(column):.2f}" for column in zip(*found, strict=True))
            print(f"{name}: first paint, first content, everything: {first} s the first time, median {medians} s")
            print(f"server after it: {peak_megabytes(server.pid):.0f} MB at most")
        server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 runs and 2,000 rounds")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    runs, rounds = (20, 2_000) if options.quick else (1_000, 100_000)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "runs"
        write_folder(folder, runs, rounds)
        size = (folder / "long" / "events.jsonl").stat().st_size
        print(json.dumps({"runs": runs, "rounds of the long run": rounds, "its log in MB": round(size / 1e6)}))
        measure(folder, options.repeats)


if __name__ == "__main__":
    main()
