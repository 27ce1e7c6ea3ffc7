"""Split CIFAR-100 from its binary version: records of coarse label, fine label and 3,072 bytes.

Five tasks of twenty classes each, in the order of the fine labels. The files are already what a cache would
hold, so none is made.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedspecial.data.formats.common import Bad, Chunk, Request, check_labels, tell_skipped
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark

FOLDER, NUM_CLASSES, TASKS = "cifar-100-binary", 100, 5
RECORD = 2 + 3 * 32 * 32
MEAN, STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


def base(request: Request) -> Path:
    if (request.root / FOLDER).is_dir() or not (request.root / "train.bin").is_file():
        return request.root / FOLDER
    return request.root


def needs(request: Request, domain: str) -> list[Path]:
    return [base(request) / name for name in ("train.bin", "test.bin", "fine_label_names.txt")]


def count(request: Request, domain: str) -> tuple[int, int | None]:
    """Of one task: a fifth, since every class has as many."""
    sizes = [(base(request) / name).stat().st_size // RECORD // TASKS for name in ("train.bin", "test.bin")]
    return sizes[0], sizes[1]


def read(path: Path, bad: Bad) -> Chunk:
    """Images (n, 3, 32, 32) and fine labels."""
    raw = np.fromfile(path, dtype=np.uint8)
    whole = len(raw) // RECORD
    if len(raw) % RECORD:
        bad.add(whole, f"{path.name}: truncated at row {whole + 1}: {len(raw) % RECORD} of {RECORD} bytes")
    records = raw[: whole * RECORD].reshape(whole, RECORD)
    y = records[:, 1].astype(np.int64)
    check_labels(y, NUM_CLASSES, path.name, bad)
    rows = np.setdiff1d(np.arange(whole), [row for row, _ in bad.found])
    return records[rows, 2:].reshape(-1, 3, 32, 32), y[rows]


def load(request: Request, classes: tuple[str, ...]) -> Benchmark:
    """Labels count up in the order the tasks are learned, so a growing head only ever appends."""
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.formats.assemble import domain_as_published

    parts, names = [], _names(request)
    for name in ("train", "test"):
        bad = Bad(request.on_bad)
        parts.append(read(base(request) / f"{name}.bin", bad))
        tell_skipped(f"cifar100 {name}", bad.found, request.notice)
        request.tick(1, 1)
    size = NUM_CLASSES // TASKS
    domains, order = [], []
    for task, domain in enumerate(request.domains):
        first = size * (int(domain.removeprefix("task-")) - 1)
        order += names[first : first + size]
        chosen = [(y >= first) & (y < first + size) for _, y in parts]
        train, test = ((x[rows], y[rows] - first + size * task) for (x, y), rows in zip(parts, chosen, strict=True))
        domains.append(domain_as_published(domain, train, test, request))
    return Benchmark("cifar100", tuple(domains), tuple(order), mean=MEAN, std=STD, incremental="class")


def _names(request: Request) -> list[str]:
    folder = base(request)
    missing = next((path for path in needs(request, "") if not path.is_file()), None)
    if missing is not None:
        if (request.root / "cifar-100-python").exists() or (request.root / "cifar-100-python.tar.gz").exists():
            raise InputError(
                "cifar-100-python: this version is a pickle, which can run code when it is opened, so it is "
                f"not read; use the binary version{request.place('')}"
            )
        raise InputError(f"{request.shown(missing)}: not in the data folder {request.root}{request.place('')}")
    names = (folder / "fine_label_names.txt").read_text("utf-8", "replace").split()
    if len(names) != NUM_CLASSES:
        raise InputError(f"{request.shown(folder)}/fine_label_names.txt: {len(names)} names, expected {NUM_CLASSES}")
    return names
