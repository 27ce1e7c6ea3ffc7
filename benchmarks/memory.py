"""Peak memory with many clients. Target: at most 50 MB difference for 4 and 400 clients per round, and for 8 and
1,000,000 clients in the federation.

Every measurement runs in a new process that reports its peak resident memory (VmHWM), because a Python memory tracer
does not see what torch allocates. ResNet-18 of width 16, one step per client, and a lazy partition (client → rows).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

TARGET = 50.0
SETTINGS = {
    "4 of 400 clients per round": (400, 4),
    "400 of 400 clients per round": (400, 400),
    "4 of 8 clients per round": (8, 4),
    "4 of 1,000,000 clients per round": (1_000_000, 4),
}


def child(clients: int, chosen: int, rounds: int) -> None:
    """Run a few rounds; print the resident memory in MB before the first round and at the peak."""
    import torch
    from problems import begin_task, images, ready_run, round_with_checkpoint

    torch.set_num_threads(1)
    settings = {"model": "resnet18", "width": 16, "local_steps": 1, "checkpoint_seconds": 0, "method": "special"}
    with tempfile.TemporaryDirectory() as folder:
        run = ready_run(
            Path(folder) / "run", images(640, tasks=2), 64, clients=clients, clients_per_round=chosen, **settings
        )
        begin_task(run, 2)
        start = resident("VmRSS")
        for round in range(rounds):
            round_with_checkpoint(run, 2, round)
        run.log.close()
    print(json.dumps({"start": start, "peak": resident("VmHWM")}))


def resident(field: str, process: int | str | None = "self") -> float:
    """Megabytes of a process, as the kernel reports them."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def measure(clients: int, chosen: int, rounds: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", str(clients), str(chosen), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    from timing import arguments

    args = arguments(__doc__)
    repeats, rounds = (1, 1) if args.quick else (3, 2)
    peaks: dict[str, float] = {}
    print(f"{'resident megabytes':<34}{'before':>9}{'peak':>9}")
    for name, (clients, chosen) in SETTINGS.items():
        found = [measure(clients, chosen, rounds) for _ in range(repeats)]
        peaks[name] = max(one["peak"] for one in found)
        print(f"  {name:<32}{max(one['start'] for one in found):9.1f}{peaks[name]:9.1f}")
    names = list(SETTINGS)
    for few, many in (names[:2], names[2:]):
        difference = abs(peaks[many] - peaks[few])
        met = "met" if difference <= TARGET else "NOT met"
        print(f"  target {met}: {few} and {many} differ by {difference:.1f} MB, at most {TARGET:g}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*(int(number) for number in sys.argv[2:5]))
    else:
        main()
