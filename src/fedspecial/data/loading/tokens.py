"""Texts as rows of int64 token ids, padded with 0 (or with the padding id of a pretrained encoder).

The default is to hash words, so that sites need no common vocabulary and no statistics of anyone's texts are shared.
The alternative is the tokenizer of a pretrained model, loaded with `transformers`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from fedspecial.core.pretrained import load
from fedspecial.errors import InputError

Texts = Sequence[tuple[str, ...]]

SEPARATOR = 1
"""The id between the two texts of a pair."""
_FIRST = 2
_WORD = re.compile(r"\w+|[^\w\s]")


def hashed(texts: Texts, *, vocab: int, length: int, ngrams: int = 1) -> np.ndarray:
    """Word ids by CRC-32, the same on every machine and in every process.

    >>> hashed([("Good, good!",)], vocab=100, length=5).tolist()
    [[6, 78, 6, 79, 0]]
    """
    if vocab <= _FIRST or length < 1 or ngrams not in (1, 2):
        raise InputError(f"vocab={vocab}, length={length}, ngrams={ngrams}: need vocab > 2, length ≥ 1, ngrams 1 or 2")
    known: dict[str, int] = {}
    out = np.zeros((len(texts), length), np.int64)
    for row, parts in enumerate(texts):
        ids = list(_ids(parts, vocab, max(length // ngrams, 1), ngrams, known))[:length]
        out[row, : len(ids)] = ids
    return out


def _ids(parts: Sequence[str], vocab: int, words: int, ngrams: int, known: dict[str, int]) -> Iterator[int]:
    """Each text of a pair gets half of the length, so that a long first text does not displace the second."""
    share = words // len(parts)
    found = [_WORD.findall(part.lower())[:share] for part in parts]
    for number, part in enumerate(found):
        if number:
            yield SEPARATOR
        for word in part:
            yield _hash(word, vocab, known)
    if ngrams == 2:
        for part in found:
            for first, second in pairwise(part):
                yield _hash(f"{first} {second}", vocab, known)


def _hash(word: str, vocab: int, known: dict[str, int]) -> int:
    if word not in known:
        known[word] = _FIRST + zlib.crc32(word.encode()) % (vocab - _FIRST)
    return known[word]


def pretrained(name: str, length: int, setting: str, *, any_padding: bool) -> Callable[[Texts], np.ndarray]:
    """A function from texts to the ids of a pretrained tokenizer.

    setting:     the setting that `name` is the value of, for error messages
    any_padding: allow a padding id other than 0, because the model that reads the ids knows it
    """
    tokenizer = load("AutoTokenizer", name, setting)
    padding = tokenizer.pad_token_id
    if padding is None:
        raise InputError(
            f"{setting}={name}: its tokenizer cannot pad, so texts of different lengths cannot form a batch"
        )
    if padding != 0 and not any_padding:
        raise InputError(
            f"{setting}={name}: its tokenizer pads with {padding}; without an encoder the padding must be 0"
        )

    def encode(texts: Texts) -> np.ndarray:
        if len({len(parts) for parts in texts}) > 1:
            raise InputError(f"{setting}={name}: some samples are one text and others are pairs; give all alike")
        columns = [list(column) for column in zip(*texts, strict=True)]
        ids = tokenizer(*columns, padding="max_length", truncation=True, max_length=length)["input_ids"]
        return np.array(ids, np.int64)

    return encode
