"""A hashed bag of words: the smallest text model that learns words, with no vocabulary to agree on.

Sites cannot share a vocabulary without sharing words, but they can share a hash function. A text is a row of
int64 token ids; 0 is padding and means "no word".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedspecial.models.classifier import Classifier

BUCKETS = 2**14


class BagOfWords(Classifier):
    """The mean of the word vectors, then one hidden layer of the same `width`.

    Any non-negative id is folded into the table, so a reader of texts may hash as finely as it likes.
    A text without a single word has the zero vector.
    """

    def __init__(self, num_classes: int, width: int = 64, buckets: int = BUCKETS) -> None:
        super().__init__()
        self.buckets = buckets
        self.embedding = nn.EmbeddingBag(buckets, width, mode="mean", padding_idx=0)
        self.hidden = nn.Linear(width, width)
        self.fc = nn.Linear(width, num_classes)

    def features(self, x: Tensor) -> Tensor:
        folded = torch.where(x == 0, x, 1 + (x - 1) % (self.buckets - 1))
        return torch.relu_(self.hidden(self.embedding(folded)))
