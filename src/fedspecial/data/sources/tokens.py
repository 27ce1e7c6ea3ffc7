"""Texts as rows of int64 token ids, 0 for padding.

The light way hashes words, so sites need no common vocabulary and nothing is learned from anyone's texts.
The other way is a pretrained model's own tokenizer, read from a local folder by `transformers`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from fedspecial.errors import InputError

SEPARATOR = 1
"""Stands between the two texts of a pair."""
_FIRST = 2
_WORD = re.compile(r"\w+|[^\w\s]")


def hashed(texts: Sequence[tuple[str, ...]], *, vocab: int, length: int, ngrams: int = 1) -> np.ndarray:
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


def pretrained(texts: Sequence[tuple[str, ...]], folder: str, length: int) -> np.ndarray:
    """Ids of a pretrained tokenizer. Its padding must be 0: that is how the models here know padding."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise InputError("tokenizer: needs the extra 'text' (pip install 'fedspecial[text]')") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InputError(f"tokenizer={folder}: no tokenizer there ({str(error).splitlines()[0]})") from None
    if tokenizer.pad_token_id != 0:
        raise InputError(f"tokenizer={folder}: it pads with {tokenizer.pad_token_id}; only 0 is understood")
    columns = [list(column) for column in zip(*texts, strict=True)]
    ids = tokenizer(*columns, padding="max_length", truncation=True, max_length=length)["input_ids"]
    return np.array(ids, np.int64)
