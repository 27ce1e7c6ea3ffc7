"""The GLUE sequence: sentiment (SST-2), duplicate questions (QQP), question answering (QNLI); MRPC on request.

Label 1 means positive (SST-2), duplicate (QQP), entailment (QNLI) and paraphrase (MRPC). The tasks share the label
numbers but not their meaning, so the sequence is domain-incremental in form only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedspecial.data.entry import Entry
from fedspecial.data.formats.text_lines import read_columns
from fedspecial.data.loading import text_domains
from fedspecial.data.loading.bad_rows import BadRows, report_skipped
from fedspecial.data.loading.request import LoadRequest
from fedspecial.data.loading.text_domains import BINARY, Parts, TextBenchmark
from fedspecial.errors import InputError

CLASSES = ("no", "yes")


@dataclass(frozen=True)
class Corpus:
    """A tab-separated corpus: its files, the columns with text, and the label values in the order 0, 1."""

    train: str
    test: str
    columns: tuple[str, ...]
    label: str = "label"
    values: Mapping[str, int] | None = None


CORPORA = {
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


def files(request: LoadRequest, domain: str) -> list[Path]:
    corpus = CORPORA[domain]
    return [request.root / corpus.train, request.root / corpus.test]


def optional_files(request: LoadRequest, domain: str) -> list[Path]:
    """QNLI's training part is optional if its development part exists, which is then split."""
    train, test = files(request, domain)
    return [train] if domain == "qnli" and test.is_file() else []


def count(request: LoadRequest, domain: str) -> tuple[int, int | None]:
    """Lines of the files without their headers."""
    train, test = (max(text_domains.count_lines(path) - 1, 0) for path in files(request, domain))
    return train, test


def read(request: LoadRequest, domain: str) -> Parts:
    corpus, found = CORPORA[domain], []
    for path in files(request, domain):
        name = request.display_name(path)
        if not path.is_file():
            if path in optional_files(request, domain):
                request.notice(f"{name}: missing; the development part is split 70/30 instead")
                continue
            instead = "; MRPC can be used in its place: domains=sst2,mrpc,qnli" if domain == "qqp" else ""
            raise InputError(f"{request.missing_file(path, domain)}{instead}")
        bad = BadRows(request.on_bad)
        found.append(read_columns(path, name, corpus.columns, corpus.label, corpus.values or BINARY, bad))
        report_skipped(f"domain '{domain}'", bad.found, request.notice)
        request.progress(1, 1)
    return found[0], found[1] if len(found) > 1 else None


_TEXTS = TextBenchmark("glue", CLASSES, files, read)

ENTRY = Entry(
    name=_TEXTS.name,
    title="GLUE sequence: sentiment, duplicate questions, question answering",
    kind="text",
    domains=("sst2", "qqp", "qnli"),
    extra_domains=("mrpc",),
    classes=_TEXTS.classes,
    num_classes=2,
    licence="QNLI CC BY-SA 4.0; QQP Quora's terms; MRPC Microsoft Research's; SST-2 states none",
    load=_TEXTS.load,
    files=files,
    optional_files=optional_files,
    count=count,
    example_texts=_TEXTS.example_texts,
    sources={
        "": "https://gluebenchmark.com/tasks",
        "mrpc": "https://www.microsoft.com/en-us/download/details.aspx?id=52398",
    },
    sizes={"sst2": (67349, 872), "qqp": (363846, 40430), "qnli": (104743, 5463), "mrpc": (4076, 1725)},
    options=text_domains.OPTIONS,
)
