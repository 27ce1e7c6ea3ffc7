"""Domains from labelled texts: how texts become token ids, and how parts become domains. Shared by GLUE and FDU-MTL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedspecial.data.formats.text_lines import LabelledTexts
from fedspecial.data.loading import tokens
from fedspecial.data.loading.request import LoadRequest
from fedspecial.data.schema import TextEncoding
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.samples import Domain

OPTIONS: Mapping[str, Any] = {"vocab": 2**14, "length": 128, "ngrams": 1, "tokenizer": None, "encoder": None}
"""Options of every benchmark of texts: size of the hashed vocabulary, tokens per text, and pretrained tokenizers."""
BINARY = {"0": 0, "1": 1}

Parts = tuple[LabelledTexts, LabelledTexts | None]
"""Training and test texts; None for the second if the first has to be split."""


def encoding_of(request: LoadRequest) -> TextEncoding:
    """As the options say; for a trained model, as in its training."""
    if request.schema is not None and request.schema.text is not None:
        return replace(request.schema.text, column=str(request.options.get("text_column", "text")))
    return TextEncoding.of(request.options)


def make_encoder(encoding: TextEncoding) -> Callable[[tokens.Texts], np.ndarray]:
    """The function from texts to token ids. A pretrained encoder uses its own tokenizer."""
    length, setting = encoding.length, "tokenizer" if encoding.tokenizer else "encoder"
    name = encoding.tokenizer or encoding.encoder
    if name:
        return tokens.pretrained(name, length, setting, any_padding=bool(encoding.encoder))
    return lambda texts: tokens.hashed(texts, vocab=encoding.vocab, length=length, ngrams=encoding.ngrams)


def text_parts(value: Any) -> tuple[str, ...]:
    """The texts of one sample as a JSON line has them: a text, or a list of the two texts of a pair."""
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)


@dataclass(frozen=True)
class TextBenchmark:
    """A named benchmark of texts: how it loads, given which files a domain has and how they are read."""

    name: str
    classes: tuple[str, ...]
    files: Callable[[LoadRequest, str], list[Path]]
    read: Callable[[LoadRequest, str], Parts]

    def load(self, request: LoadRequest) -> Benchmark:
        from fedspecial.data.benchmark import Benchmark

        domains = tuple(
            text_domain(request, domain, self.read(request, domain), self.files(request, domain)[0])
            for domain in request.domains
        )
        return Benchmark(self.name, domains, self.classes, kind="text", encoding=encoding_of(request))

    def example_texts(self, request: LoadRequest, domain: str, classes: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The first text of each class, for a figure."""
        train = self.read(request, domain)[0]
        return [train.texts[int(np.flatnonzero(train.labels == label)[0])] for label in range(len(classes))]


def text_domain(request: LoadRequest, name: str, parts: Parts, file: Path) -> Domain:
    """A domain from its texts, with the published split or, without one, a 70/30 split.

    file: the file to name if no line of it can be used
    """
    from fedspecial.data.loading.splits import domain_as_published, domain_split

    train, test = parts
    for part in parts:
        if part is not None and len(part.labels) == 0:
            raise InputError(f"domain '{name}': {request.display_name(file)} has no usable lines")
    encode = make_encoder(encoding_of(request))
    if test is None:
        return domain_split(name, encode(train.texts), train.labels, request)
    return domain_as_published(name, (encode(train.texts), train.labels), (encode(test.texts), test.labels), request)


def count_lines(path: Path) -> int:
    """The number of lines that are not empty; 0 if the file is missing."""
    return sum(1 for line in path.read_bytes().split(b"\n") if line.strip()) if path.is_file() else 0
