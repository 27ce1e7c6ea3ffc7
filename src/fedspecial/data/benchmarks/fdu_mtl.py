"""FDU-MTL: reviews of fourteen kinds of products and of films from two sources, bad or good."""

from __future__ import annotations

from pathlib import Path

from fedspecial.data.entry import Entry
from fedspecial.data.formats.text_lines import read_labelled
from fedspecial.data.loading import text_domains
from fedspecial.data.loading.bad_rows import BadRows, report_skipped
from fedspecial.data.loading.request import LoadRequest
from fedspecial.data.loading.text_domains import BINARY, Parts, TextBenchmark

CLASSES = ("bad", "good")
FILE_STEMS = {
    "books": "books",
    "electronics": "electronics",
    "dvd": "dvd",
    "kitchen": "kitchen_housewares",
    "apparel": "apparel",
    "camera": "camera_photo",
    "health": "health_personal_care",
    "music": "music",
    "toys": "toys_games",
    "video": "video",
    "baby": "baby",
    "magazines": "magazines",
    "software": "software",
    "sports": "sports_outdoors",
    "imdb": "imdb",
    "mr": "MR",
}


def files(request: LoadRequest, domain: str) -> list[Path]:
    return [request.root / f"FDU-MTL/{FILE_STEMS[domain]}.task.{part}" for part in ("train", "test")]


def count(request: LoadRequest, domain: str) -> tuple[int, int | None]:
    train, test = (text_domains.count_lines(path) for path in files(request, domain))
    return train, test


def read(request: LoadRequest, domain: str) -> Parts:
    found = []
    for path in files(request, domain):
        if not path.is_file():
            raise request.missing_file(path, domain)
        bad = BadRows(request.on_bad)
        found.append(read_labelled(path, request.display_name(path), BINARY, bad))
        report_skipped(f"domain '{domain}'", bad.found, request.notice)
        request.progress(1, 1)
    return found[0], found[1]


_TEXTS = TextBenchmark("fdu-mtl", CLASSES, files, read)

ENTRY = Entry(
    name=_TEXTS.name,
    title="FDU-MTL: reviews of products and films in sixteen domains, bad or good",
    kind="text",
    domains=tuple(FILE_STEMS)[:4],
    extra_domains=tuple(FILE_STEMS)[4:],
    classes=_TEXTS.classes,
    num_classes=2,
    licence="none stated; published for research",
    load=_TEXTS.load,
    files=files,
    count=count,
    example_texts=_TEXTS.example_texts,
    sources={"": "http://pfliu.com/paper/adv-mtl.html"},
    sizes={
        **{domain: (1600, 400) for domain in FILE_STEMS},
        **{"electronics": (1598, 400), "camera": (1597, 400), "baby": (1500, 400)},
        **{"magazines": (1570, 400), "software": (1515, 400)},
    },
    options=text_domains.OPTIONS,
)
