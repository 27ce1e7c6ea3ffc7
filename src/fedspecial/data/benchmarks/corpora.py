"""GLUE's sequence and FDU-MTL's review domains.

In GLUE's sequence 1 means positive (SST-2), duplicate (QQP), entailment (QNLI) and paraphrase (MRPC): the
labels share two numbers, not a meaning, so it is domain-incremental in form only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedspecial.data.formats import text, tokens
from fedspecial.data.formats.common import Bad, Request, tell_skipped
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark, Domain

BINARY = {"0": 0, "1": 1}
OPTIONS: Mapping[str, Any] = {"vocab": 2**14, "length": 128, "ngrams": 1, "tokenizer": None, "encoder": None}


@dataclass(frozen=True)
class Corpus:
    """A tab-separated corpus: its files, which columns are text and what its label values mean."""

    train: str
    test: str
    columns: tuple[str, ...]
    label: str = "label"
    values: Mapping[str, int] | None = None


GLUE = {
    "sst2": Corpus("SST-2/train.tsv", "SST-2/dev.tsv", ("sentence",)),
    "qqp": Corpus("QQP/train.tsv", "QQP/dev.tsv", ("question1", "question2"), "is_duplicate"),
    "qnli": Corpus(
        "QNLI/train.tsv",
        "QNLI/dev.tsv",
        ("question", "sentence"),
        values={"not_entailment": 0, "entailment": 1},
    ),
    "mrpc": Corpus(
        "MRPC/msr_paraphrase_train.txt", "MRPC/msr_paraphrase_test.txt", ("#1 String", "#2 String"), "Quality"
    ),
}

FDU = {
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

Parts = tuple[text.Texts, text.Texts | None]


def needs(request: Request, domain: str) -> list[Path]:
    if domain in FDU:
        return [request.root / f"FDU-MTL/{FDU[domain]}.task.{part}" for part in ("train", "test")]
    corpus = GLUE[domain]
    return [request.root / corpus.train, request.root / corpus.test]


def count(request: Request, domain: str) -> tuple[int, int | None]:
    """Lines of the files, without the header."""
    header = domain in GLUE
    sizes = [
        sum(1 for line in path.read_bytes().split(b"\n") if line.strip()) - header if path.is_file() else 0
        for path in needs(request, domain)
    ]
    return sizes[0], sizes[1]


def read(request: Request, domain: str) -> Parts:
    """A domain's training and test texts; None for the test part if the first must be split."""
    found = []
    for path in needs(request, domain):
        bad, shown = Bad(request.on_bad), request.shown(path)
        if not path.is_file():
            if domain == "qnli" and "train" in path.name and path.with_name("dev.tsv").is_file():
                request.notice(f"{shown}: not there; the development part is split 70/30 instead")
                continue
            instead = "; MRPC may stand in as its own domain: domains=sst2,mrpc,qnli" if domain == "qqp" else ""
            raise InputError(f"{shown}: not in the data folder {request.root}{request.place(domain)}{instead}")
        if domain in FDU:
            part = text.read_labelled(path, shown, BINARY, bad)
        else:
            corpus = GLUE[domain]
            part = text.read_columns(path, shown, corpus.columns, corpus.label, corpus.values or BINARY, bad)
        tell_skipped(f"domain '{domain}'", bad.found, request.notice)
        request.tick(1, 1)
        found.append(part)
    return found[0], found[1] if len(found) > 1 else None


def texts(request: Request, domain: str, classes: tuple[str, ...]) -> list[tuple[str, ...]]:
    """One training text of each class, for people to look at."""
    part, _ = read(request, domain)
    first = [int(np.flatnonzero(part.labels == label)[0]) for label in range(len(classes))]
    return [part.texts[row] for row in first]


def encoder(options: Mapping[str, Any]) -> Callable[[text.Texts], np.ndarray]:
    """The way texts become ids, as the options say; a pretrained encoder has its own tokenizer."""
    length = int(options["length"])
    word = "tokenizer" if options["tokenizer"] else "encoder"
    if options[word]:
        encode = tokens.pretrained(str(options[word]), length, word, any_padding=bool(options["encoder"]))
        return lambda part: encode(part.texts)
    vocab, ngrams = int(options["vocab"]), int(options["ngrams"])
    return lambda part: tokens.hashed(part.texts, vocab=vocab, length=length, ngrams=ngrams)


def load(request: Request, classes: tuple[str, ...]) -> Benchmark:
    from fedspecial.data.benchmark import Benchmark

    name = "fdu-mtl" if request.domains[0] in FDU else "glue"
    return Benchmark(name, tuple(_domain(request, domain) for domain in request.domains), classes, kind="text")


def _domain(request: Request, name: str) -> Domain:
    from fedspecial.data.formats.assemble import domain_as_published, domain_split

    train, test = read(request, name)
    encode = encoder(request.options)
    for part in (train, test):
        if part is not None and len(part.labels) == 0:
            raise InputError(f"domain '{name}': {request.shown(needs(request, name)[0])} has no usable lines")
    if test is None:
        return domain_split(name, encode(train), train.labels, request)
    return domain_as_published(name, (encode(train), train.labels), (encode(test), test.labels), request)
