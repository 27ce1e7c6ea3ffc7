"""SIGKILL at random moments, many times in one run, each followed by a resume."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runs import assert_same_run

from processes import Fork

KILLS, RESUMES = 10, 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        "method=special",
        "method=special mu=0.5 optimizer=sgd momentum=0.9",
        "method=special-c",
        "method=special mode=async buffer=1 latency=exponential drop_rate=0.2 max_staleness=3",
        "method=special-c model=cnn width=4 batch_norm=local",
        "method=special model=cnn width=4 batch_norm=local",
        "method=special model=cnn width=4 batch_norm=mean-only checkpoint_seconds=0.2",
    ],
)
def test_a_run_killed_at_random_moments_resumes_to_the_same_result(
    fork: Fork, tiny: list[str], tmp_path: Path, settings: str
) -> None:
    chosen = dict(setting.split("=") for setting in [*tiny[1:], *settings.split()]) | {"rounds": "40"}
    command = ["run", tiny[0], *(f"{key}={value}" for key, value in chosen.items())]
    uninterrupted = fork(*command, f"out={tmp_path / 'uninterrupted'}")
    assert uninterrupted.code == 0, uninterrupted.stderr

    # A run that ends before it is killed is compared and replaced by a new one, so that there are as many kills on a
    # machine that happens to be faster than it was a moment ago.
    rng = np.random.default_rng([25, *settings.encode()])
    number = kills = resumes = 0
    while kills < KILLS or resumes < RESUMES:
        folder = tmp_path / f"run-{number}"
        exists = folder.exists()
        arguments = ["resume", str(folder)] if exists else [*command, f"out={folder}"]
        outcome = fork(*arguments, kill_after=float(rng.uniform(0, 0.25 * uninterrupted.seconds)))
        assert outcome.code in (0, -9), outcome.stderr
        kills += outcome.code == -9
        resumes += exists
        if outcome.code == 0:
            assert_same_run(folder, tmp_path / "uninterrupted")
            number += 1
    if not folder.exists():
        assert fork(*command, f"out={folder}").code == 0
    assert fork("resume", folder).code == 0
    assert_same_run(folder, tmp_path / "uninterrupted")
