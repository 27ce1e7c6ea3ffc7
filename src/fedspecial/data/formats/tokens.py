"""Texts as rows of int64 token ids, 0 for padding (or what a pretrained encoder pads with).

The light way hashes words, so sites need no common vocabulary and nothing is learned from anyone's texts.
The other way is a pretrained model's own tokenizer, read by `transformers`.
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
"""Stands between the two texts of a pair."""
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
    """Each part of a pair has half the room, so that a long first text doesn't push the second one out."""
    room = words // len(parts)
    found = [_WORD.findall(part.lower())[:room] for part in parts]
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


def pretrained(name: str, length: int, word: str, *, any_padding: bool) -> Callable[[Texts], np.ndarray]:
    """The way from texts to ids of a pretrained tokenizer.

    any_padding: who reads the ids knows the tokenizer's padding; otherwise it must be 0, the padding of all others
    """
    tokenizer = load("AutoTokenizer", name, word)
    padding = tokenizer.pad_token_id
    if padding is None:
        raise InputError(f"{word}={name}: its tokenizer cannot pad, so texts of different lengths make no batch")
    if padding != 0 and not any_padding:
        raise InputError(f"{word}={name}: it pads with {padding}; without an encoder only 0 is understood")

    def encode(texts: Texts) -> np.ndarray:
        columns = [list(column) for column in zip(*texts, strict=True)]
        ids = tokenizer(*columns, padding="max_length", truncation=True, max_length=length)["input_ids"]
        return np.array(ids, np.int64)

    return encode
