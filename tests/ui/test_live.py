"""A real run, watched in Chromium: its rounds appear as they happen, through its SIGKILL and its resume."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_command import ui
from ui_pages import page, press, texts, wait_for

from browser import Browser, chromium
from processes import ENVIRONMENT, fresh

pytestmark = pytest.mark.slow
ROUNDS = 30
SETTINGS = ("domains=paper,neon", "cap=200", f"rounds={ROUNDS}", "checkpoint_seconds=0.5", "local_epochs=2")


def start(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fedspecial.cli.main", *arguments]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def rounds_shown(browser: Browser) -> int:
    return int(texts(browser, ".tile b")[3].split(" ")[0].replace("–", "0"))


def rounds_written(run: Path) -> int:
    lines = (run / "events.jsonl").read_bytes().split(b"\n")
    return sum(line.startswith(b'{"event": "round"') for line in lines[:-1])


def wait_for_rounds(browser: Browser, low: int, seconds: float = 120) -> int:
    deadline = time.monotonic() + seconds
    while (shown := rounds_shown(browser)) < low:
        assert time.monotonic() < deadline, f"{shown} rounds are shown, not {low}"
        time.sleep(0.05)
    return shown


@pytest.mark.timeout(600)
def test_a_run_is_watched_through_its_kill_and_its_resume(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    run, state = folder / "watched", "document.querySelector('h1 .state').textContent"
    with ui(folder, SSH_CONNECTION="") as (line, _), chromium() as browser:
        address = line.strip()
        process = start("run", "digits-shift", "seed=25", *SETTINGS, f"out={run}")
        try:
            with page(browser, address):
                wait_for(browser, "document.querySelectorAll('.runs tbody tr').length", 1, 60)
            with page(browser, address, "run", "watched"):
                first = wait_for_rounds(browser, 2)
                wait_for_rounds(browser, first + 1)
                assert texts(browser, "h1 .state") == ["running"], "rounds appear while the run goes on"

                process.send_signal(signal.SIGKILL)
                process.wait()
                wait_for(browser, state, "stopped")
                killed_at = rounds_written(run)
                wait_for(browser, "parseInt(document.querySelectorAll('.tile b')[3].textContent)", killed_at)

                process = start("resume", str(run))
                wait_for(browser, state, "running", 60)
                wait_for_rounds(browser, killed_at + 2)
                wait_for(browser, state, "finished", 240)
                wait_for(browser, "document.querySelectorAll('.heat td:not(.missing, .corner)').length", 4)
                result = json.loads((run / "result.json").read_text())
                wait_for(browser, "document.querySelectorAll('.tile b')[0].textContent", f"{100 * result['acc']:.1f}")
                assert rounds_shown(browser) == 2 * ROUNDS
        finally:
            process.kill()
            process.wait()
        settings = ("seed=25", "method=fedavg", *SETTINGS[:2], "rounds=2", f"out={folder / 'other'}")
        assert fresh("run", "digits-shift", *settings).code == 0
        with page(browser, address):
            wait_for(browser, "document.querySelectorAll('.runs tbody tr').length", 2)
            for name in ("watched", "other"):
                press(browser, f"input[aria-label='select {name}']")
            press(browser, ".tools .button")
            wait_for(browser, "document.querySelectorAll('.matrices .heat').length", 2)
            assert {"special", "fedavg"} <= set(" ".join(texts(browser, ".legend b")).split())
