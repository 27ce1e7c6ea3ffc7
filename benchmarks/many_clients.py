"""A round of 10,000 clients out of 1,000,000. Targets: at most 300 MB more peak memory than 1,000 clients out of
1,000, and at most 1.3 times as long as ten rounds of 1,000 clients.

Logistic regression on 8 random features; every client has one row (`partition=iid`, `min_per_client=1`), so the data
grows with the clients and counts as part of the memory. Every measurement of memory runs in a new process that reports
its peak resident memory (VmHWM). SPECIAL-C sends its anchor once to every client, so the server also has to remember
which client has it.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from memory import resident
from problems import begin_task, features, ready_run, round_with_checkpoint
from timing import Quartiles, arguments, interleave, ratio, set_threads, show, verdict

from fedspecial.data.benchmark import Benchmark
from fedspecial.engine.run import Run

FEATURES = 8
MEMORY_TARGET, TIME_TARGET = 300.0, 1.3
METHODS = {"SPECIAL": "special", "SPECIAL-C": "special-c"}


def prepared(folder: Path, data: Benchmark, clients: int, chosen: int, method: str, **others: int) -> Run:
    """A run at the beginning of its second task, where there is an anchor."""
    settings: dict[str, Any] = {
        "model": "logistic",
        "local_epochs": 1,
        "batch_size": 10,
        "partition": "iid",
        "min_per_client": 1,
    }
    settings |= others
    run = ready_run(folder, data, method=method, clients=clients, clients_per_round=chosen, **settings)
    run.federation.check()
    begin_task(run, 2)
    return run


def child(clients: int, chosen: int) -> None:
    """Run one round and one checkpoint; print the peak resident memory in MB."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = prepared(
            Path(folder) / "run",
            features(clients, FEATURES, tasks=2),
            clients,
            chosen,
            "special-c",
            checkpoint_seconds=0,
        )
        round_with_checkpoint(run, 2, 0)
        run.log.close()
    print(json.dumps(resident("VmHWM")))


def peak(clients: int, chosen: int) -> float:
    command = [sys.executable, __file__, "--child", str(clients), str(chosen)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def compare_memory(few: int, many: int, chosen: int, repeats: int) -> None:
    small = Quartiles.of([peak(few, few) for _ in range(repeats)])
    large = Quartiles.of([peak(many, chosen) for _ in range(repeats)])
    labels = f"{few:,} of {few:,} clients", f"{chosen:,} of {many:,} clients"
    show("peak resident memory in MB", [(labels[0], small), (labels[1], large)])
    difference = Quartiles(large.low - small.high, large.median - small.median, large.high - small.low)
    verdict("megabytes more", difference, MEMORY_TARGET)


def compare_time(many: int, chosen: int, repeats: int) -> None:
    part, data = chosen // 10, features(many, FEATURES, tasks=2)
    with tempfile.TemporaryDirectory() as folder:
        works: dict[str, Callable[[], None]] = {}
        counter = itertools.count()
        runs = []
        for label, method in METHODS.items():
            for count, rounds in ((chosen, 1), (part, 10)):
                run = prepared(Path(folder) / f"{method}-{count}", data, many, count, method)
                runs.append(run)

                def work(run: Run = run, rounds: int = rounds) -> None:
                    for _ in range(rounds):
                        round_with_checkpoint(run, 2, next(counter))

                works[f"{label}, {rounds} × {count:,} clients"] = work
        times = interleave(works, repeats)
        for run in runs:
            run.log.close()
    names = list(works)
    show("seconds", [(name, Quartiles.of(times[name].wall)) for name in names])
    rows = []
    for label, one, ten in zip(METHODS, names[::2], names[1::2], strict=True):
        rows.append((f"{label}, wall", ratio(times[one].wall, times[ten].wall)))
        rows.append((f"{label}, processor", ratio(times[one].cpu, times[ten].cpu)))
    show(f"one round of {chosen:,} : ten rounds of {part:,}", rows)
    for label, quartiles in rows:
        verdict(label, quartiles, TIME_TARGET)


def main() -> None:
    args = arguments(__doc__)
    set_threads(args.threads)
    few, many, chosen = (100, 10_000, 200) if args.quick else (1_000, 1_000_000, 10_000)
    compare_memory(few, many, chosen, 1 if args.quick else 3)
    compare_time(many, chosen, args.repeats or (2 if args.quick else 5))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*(int(number) for number in sys.argv[2:4]))
    else:
        main()
