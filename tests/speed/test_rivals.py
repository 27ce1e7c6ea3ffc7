"""The comparison with other frameworks, without installing them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

NOISY_ADAPTER = """
import os, sys
from protocol import Problem, serve
problem = Problem.from_json(sys.argv[1])
def run_rounds(rounds):
    os.write(1, b"a library prints this\\n")
    return rounds * problem.steps if rounds < 9 else 0
serve(run_rounds)
"""


@pytest.fixture(autouse=True)
def _benchmarks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_rivals_train_on_the_data_of_our_run() -> None:
    from problems import EqualShares, features
    from rival_adapters.protocol import Problem, client_data

    problem = Problem(clients=3, per_round=2)
    ours = features(problem.clients * problem.rows, problem.features).domains[0].train
    shares = EqualShares(problem.rows, len(ours))
    for client, (x, y) in enumerate(client_data(problem)):
        rows = shares.rows(client)
        assert torch.equal(x, ours.x[rows])
        assert torch.equal(y, ours.y[rows])


def test_an_adapter_replies_with_seconds_whatever_a_library_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rival_adapters import processes
    from rival_adapters.protocol import Problem

    (tmp_path / "noisy_adapter.py").write_text(NOISY_ADAPTER)
    (tmp_path / "protocol.py").symlink_to(BENCHMARKS / "rival_adapters" / "protocol.py")
    monkeypatch.setattr(processes, "HERE", tmp_path)
    rival = processes.Rival("noisy", "a noisy library")
    adapter = processes.Adapter(rival, Path(sys.executable), Problem(clients=8, per_round=4), tmp_path)
    try:
        assert adapter.run(2).wall > 0
        assert adapter.run(3).wall > 0
        with pytest.raises(processes.RivalError, match="took 0 SGD steps in 9 rounds, not 216"):
            adapter.run(9)
    finally:
        adapter.close()
    assert adapter.process.returncode == 0
    assert "a library prints this" in adapter.log.read_text()


def test_an_adapter_that_cannot_start_is_reported_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rival_adapters import processes
    from rival_adapters.protocol import Problem

    (tmp_path / "broken_adapter.py").write_text("raise ImportError('no such library')")
    monkeypatch.setattr(processes, "HERE", tmp_path)
    with pytest.raises(processes.RivalError, match="the adapter ended: ImportError: no such library"):
        processes.Adapter(processes.Rival("broken", ""), Path(sys.executable), Problem(8, 4), tmp_path)


@pytest.mark.slow
def test_a_rival_that_cannot_be_installed_is_left_out_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "rivals.py"), "--quick", "--env", str(tmp_path / "env")]
    offline = os.environ | {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=offline)
    assert done.returncode == 0, done.stderr
    left_out = [line for line in done.stdout.splitlines() if "left out" in line]
    assert len(left_out) == 2
    assert all("cannot be installed: ERROR: No matching distribution" in line for line in left_out)
    assert "10 of 1000 clients" in done.stdout
