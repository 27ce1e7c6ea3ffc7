"""Spoken digits (Free Spoken Digit Dataset): six speakers as domains, recordings as log-mel spectrograms.

A recording `DIGIT_SPEAKER_INDEX.wav` becomes an image of 32 bands of frequencies by 32 moments of one second (see
`formats/wav.py`). Index 0 to 4 of each digit is the published test part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedspecial.data.cache import Decoded, cached
from fedspecial.data.entry import Entry
from fedspecial.data.formats import wav
from fedspecial.data.loading.bad_rows import BadRows, Chunk, report_skipped
from fedspecial.data.loading.request import LoadRequest
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark

SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
CLASSES = tuple("0123456789")
SIZE = 32
SMALLEST, LARGEST = 16, 64
TEST_INDICES = 5
NAME = re.compile(r"(\d)_([a-z]+)_(\d+)\.wav")


def _folder(request: LoadRequest) -> Path:
    candidates = [request.root / part for part in ("FSDD/recordings", "free-spoken-digit-dataset/recordings", "FSDD")]
    return next((folder for folder in candidates if folder.is_dir()), candidates[0])


def _recordings(request: LoadRequest, speaker: str) -> list[tuple[Path, int, bool]]:
    """File, digit and whether it belongs to the test part, of all recordings of a speaker."""
    folder = _folder(request)
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        name = NAME.fullmatch(path.name)
        if name is not None and name[2] == speaker:
            found.append((int(name[1]), int(name[3]), path))
    return [(path, digit, index < TEST_INDICES) for digit, index, path in sorted(found)]


def files(request: LoadRequest, domain: str) -> list[Path]:
    found = [path for path, _, _ in _recordings(request, domain)]
    return found or [_folder(request) / f"0_{domain}_0.wav"]


def count(request: LoadRequest, domain: str) -> tuple[int, int | None]:
    tests = [in_test for _, _, in_test in _recordings(request, domain)]
    return len(tests) - sum(tests), sum(tests)


def load(request: LoadRequest) -> Benchmark:
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.loading.splits import domain_as_published

    size = request.image_size or SIZE
    if not SMALLEST <= size <= LARGEST:
        raise InputError(f"image_size={size}: spectrograms of 'spoken-digits' have {SMALLEST} to {LARGEST} bands")
    domains = []
    for speaker in request.domains:
        found = _recordings(request, speaker)
        if not found:
            raise request.missing_file(files(request, speaker)[0], speaker)
        parts = []
        for part, in_test in (("train", False), ("test", True)):
            chosen = [(path, digit) for path, digit, is_test in found if is_test == in_test]
            if not chosen:
                raise InputError(f"domain '{speaker}' {part}: there are no recordings in {_folder(request)}")
            decoded = _decoded(request, f"domain '{speaker}' {part}", *zip(*chosen, strict=True), size=size)
            parts.append((decoded.x, decoded.y))
        domains.append(domain_as_published(speaker, parts[0], parts[1], request))
    return Benchmark("spoken-digits", tuple(domains), CLASSES, mean=(0.5,) * 3, std=(0.5,) * 3)


def _decoded(request: LoadRequest, part: str, paths: Sequence[Path], digits: Sequence[int], *, size: int) -> Decoded:
    def build(bad: BadRows) -> Iterator[Chunk]:
        images, labels = [], []
        for row, (path, digit) in enumerate(zip(paths, digits, strict=True)):
            try:
                images.append(wav.spectrogram(*wav.read(path), size))
                labels.append(digit)
            except InputError as error:
                bad.add(row, f"{request.display_name(path)}: {error}")
            request.progress(row + 1, len(paths))
        if images:
            yield np.stack(images)[:, None], np.array(labels, np.int64)

    decoded = cached(
        paths,
        {"reader": "spoken-digits/1", "size": size, "labels": list(digits)},
        build,
        folder=request.cache,
        on_bad=request.on_bad,
        fresh=request.fresh,
        notice=request.notice,
    )
    report_skipped(part, decoded.skipped, request.notice)
    return decoded


ENTRY = Entry(
    name="spoken-digits",
    title="Spoken digits of six speakers (FSDD) as log-mel spectrograms",
    kind="image",
    domains=SPEAKERS,
    classes=CLASSES,
    num_classes=10,
    licence="CC BY-SA 4.0",
    load=load,
    files=files,
    count=count,
    sources={"": "https://github.com/Jakobovski/free-spoken-digit-dataset (recordings)"},
    sizes={speaker: (450, 50) for speaker in SPEAKERS},
)
