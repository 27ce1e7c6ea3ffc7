"""Resident memory, for 4 and 400 chosen clients and for 8 and 1,000,000 registered ones. Target: within 50 MB each.

Every setting runs in a fresh process, which reports its own peak (VmHWM): a tracer would miss what torch allocates.
ResNet-18 of width 16, one step a client, and a lazy partition (client → rows).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

TARGET = 50.0
SETTINGS = {
    "4 chosen of 400": (400, 4),
    "400 chosen of 400": (400, 400),
    "8 registered, 4 chosen": (8, 4),
    "1,000,000 registered, 4 chosen": (1_000_000, 4),
}


def child(clients: int, chosen: int, rounds: int) -> None:
    """One run of a few rounds; prints the resident megabytes before and at the peak."""
    import torch
    from problems import images, play, ready_run

    torch.set_num_threads(1)
    settings = {"model": "resnet18", "width": 16, "local_steps": 1, "checkpoint_seconds": 0, "method": "special"}
    with tempfile.TemporaryDirectory() as folder:
        run = ready_run(
            Path(folder) / "run", images(640, tasks=2), 64, clients=clients, clients_per_round=chosen, **settings
        )
        run.method.begin_task(run.server, run.context(2))
        start = resident("VmRSS")
        for round in range(rounds):
            play(run, 2, round)
        run.log.close()
    print(json.dumps({"start": start, "peak": resident("VmHWM")}))


def resident(field: str) -> float:
    """Megabytes from the kernel's own count."""
    lines = Path("/proc/self/status").read_text().splitlines()
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
        apart = abs(peaks[many] - peaks[few])
        word = "met" if apart <= TARGET else "NOT met"
        print(f"  target {word}: {few} and {many} are {apart:.1f} MB apart, at most {TARGET:g}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*(int(number) for number in sys.argv[2:5]))
    else:
        main()
