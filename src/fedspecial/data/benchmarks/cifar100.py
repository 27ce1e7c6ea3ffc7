"""Split CIFAR-100: five tasks of twenty classes each, in the order of the fine labels (class-incremental).

The binary files already have the layout of our cache, so nothing is cached.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedspecial.data.entry import Entry
from fedspecial.data.formats import cifar_binary
from fedspecial.data.formats.cifar_binary import NUM_CLASSES
from fedspecial.data.loading.bad_rows import BadRows, report_skipped
from fedspecial.data.loading.request import LoadRequest
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark

FOLDER, TASKS = "cifar-100-binary", 5
DOMAINS = tuple(f"task-{task}" for task in range(1, TASKS + 1))
MEAN, STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


def base(request: LoadRequest) -> Path:
    if (request.root / FOLDER).is_dir() or not (request.root / "train.bin").is_file():
        return request.root / FOLDER
    return request.root


def files(request: LoadRequest, domain: str) -> list[Path]:
    return [base(request) / name for name in ("train.bin", "test.bin", "fine_label_names.txt")]


def count(request: LoadRequest, domain: str) -> tuple[int, int | None]:
    """A fifth of all samples, since every class has the same number of them."""
    sizes = [cifar_binary.count(base(request) / name) // TASKS for name in ("train.bin", "test.bin")]
    return sizes[0], sizes[1]


def load(request: LoadRequest) -> Benchmark:
    """Labels are numbered in the order in which tasks are learned, so that the growing head only appends outputs."""
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.loading.splits import domain_as_published

    parts, names = [], _class_names(request)
    for name in ("train", "test"):
        bad = BadRows(request.on_bad)
        parts.append(cifar_binary.read(base(request) / f"{name}.bin", bad))
        report_skipped(f"cifar100 {name}", bad.found, request.notice)
        request.progress(1, 1)
    size = NUM_CLASSES // TASKS
    domains, order = [], []
    for task, domain in enumerate(request.domains):
        first = size * DOMAINS.index(domain)
        order += names[first : first + size]
        chosen = [(y >= first) & (y < first + size) for _, y in parts]
        train, test = ((x[rows], y[rows] - first + size * task) for (x, y), rows in zip(parts, chosen, strict=True))
        domains.append(domain_as_published(domain, train, test, request))
    return Benchmark("cifar100", tuple(domains), tuple(order), mean=MEAN, std=STD, incremental="class")


def _class_names(request: LoadRequest) -> list[str]:
    folder = base(request)
    missing = next((path for path in files(request, "") if not path.is_file()), None)
    if missing is not None:
        if (request.root / "cifar-100-python").exists() or (request.root / "cifar-100-python.tar.gz").exists():
            raise InputError(
                "cifar-100-python: this version is a pickle, which can run code when it is opened, so it is "
                f"not read; use the binary version{request.download_hint('')}"
            )
        raise request.missing_file(missing, "")
    path = folder / "fine_label_names.txt"
    names = path.read_text("utf-8", "replace").split()
    if len(names) != NUM_CLASSES:
        raise InputError(f"{request.display_name(path)}: {len(names)} names, expected {NUM_CLASSES}")
    return names


ENTRY = Entry(
    name="cifar100",
    title="Split CIFAR-100: five tasks of twenty new classes each (class-incremental)",
    kind="image",
    domains=DOMAINS,
    num_classes=NUM_CLASSES,
    licence="none stated; published for research",
    load=load,
    files=files,
    count=count,
    sources={"": "https://www.cs.toronto.edu/~kriz/cifar.html (cifar-100-binary.tar.gz)"},
    sizes={domain: (10000, 2000) for domain in DOMAINS},
    incremental="class",
)
