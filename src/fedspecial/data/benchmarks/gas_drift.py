"""Gas sensors that age (UCI): 16 chemical sensors, 128 features, six gases, measured over 36 months.

The domains are periods in the order of time. The sensors drift, so a model of one period errs in the next. Periods 3, 4
and 5 have no sample of the sixth gas: the label set of a run is that of the benchmark, and a period may lack a class.

Features are standardised with the mean and deviation of the training rows of the run's first period. Later periods are
not known when training begins, and statistics of each period or client would remove a part of the drift, which is what
is to be learned here. A federation can compute both numbers from sums and sums of squares, without sharing rows. A few
faulty measurements are thousands of deviations away, so values are limited to ±10 deviations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedspecial.data.cache import cached
from fedspecial.data.entry import Entry
from fedspecial.data.formats import libsvm
from fedspecial.data.loading import table_rows
from fedspecial.data.loading.bad_rows import BadRows, Chunk, good_chunk, report_skipped
from fedspecial.data.loading.request import LoadRequest
from fedspecial.data.schema import Column, TableEncoding

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark

CLASSES = ("ethanol", "ethylene", "ammonia", "acetaldehyde", "acetone", "toluene")
SIZES = (445, 1244, 1586, 161, 197, 2300, 3613, 294, 470, 3600)
PERIODS = tuple(f"period{number}" for number in range(1, 11))
LATER = ("period7", "period10")
"""Not in the default list; they can be selected by name."""
SENSORS, PER_SENSOR = (
    16,
    ("dR", "dR-norm", "rise-0.001", "rise-0.01", "rise-0.1", "fall-0.001", "fall-0.01", "fall-0.1"),
)
FEATURES = tuple(f"s{sensor}.{name}" for sensor in range(1, SENSORS + 1) for name in PER_SENSOR)
LIMIT = 10.0


def files(request: LoadRequest, domain: str) -> list[Path]:
    return [request.root / "GasSensorDrift" / f"batch{domain.removeprefix('period')}.dat"]


def count(request: LoadRequest, domain: str) -> tuple[int, int | None]:
    return len(libsvm.lines(files(request, domain)[0])), None


def load(request: LoadRequest) -> Benchmark:
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.loading.splits import domain_split

    found = tuple(domain_split(domain, *_decoded(request, domain), request) for domain in request.domains)
    encoding = request.schema.table if request.schema is not None else None
    if encoding is None:
        columns, statistics = tuple(map(Column, FEATURES)), table_rows.mean_and_std(found[0].train.x.numpy())
        encoding = replace(TableEncoding(columns, (), *statistics), limit=LIMIT)
    return table_rows.standardise(Benchmark("gas-drift", found, CLASSES, kind="table"), encoding)


def _decoded(request: LoadRequest, domain: str) -> Chunk:
    """The values (n, 128) as float64 and the labels; the cache stores bytes, here those of the values."""
    path = files(request, domain)[0]
    if not path.exists():
        raise request.missing_file(path, domain)

    def build(bad: BadRows) -> Iterator[Chunk]:
        x, y = libsvm.read_features(path, bad, len(FEATURES), len(CLASSES))
        yield from good_chunk(x.view(np.uint8), y, bad)

    decoded = cached(
        [path],
        {"reader": "gas-drift/1"},
        build,
        folder=request.cache,
        on_bad=request.on_bad,
        fresh=request.fresh,
        notice=request.notice,
    )
    report_skipped(f"domain '{domain}'", decoded.skipped, request.notice)
    request.progress(1, 1)
    return np.ascontiguousarray(decoded.x).view(np.float64), decoded.y


ENTRY = Entry(
    name="gas-drift",
    title="Gas sensors that drift over 36 months: 128 features, six gases; a period may lack a gas",
    kind="table",
    domains=tuple(period for period in PERIODS if period not in LATER),
    extra_domains=LATER,
    classes=CLASSES,
    num_classes=len(CLASSES),
    licence="CC BY 4.0",
    load=load,
    files=files,
    count=count,
    features=FEATURES,
    sources={"": "https://archive.ics.uci.edu/dataset/224/gas+sensor+array+drift+dataset (batch*.dat)"},
    sizes={period: (size, None) for period, size in zip(PERIODS, SIZES, strict=True)},
)
