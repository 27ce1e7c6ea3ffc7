"""A pretrained text encoder under a fresh linear head, such as DistilBERT or MiniLM, through `transformers`.

A text is a row of int64 token ids of the encoder's own tokenizer, padded with the encoder's own padding id.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedspecial.core import pretrained
from fedspecial.errors import InputError
from fedspecial.models.classifier import Classifier


class Transformer(Classifier):
    """The feature is the mean of the last layer over the words, padding left out.

    The mean and not the first token: sentence encoders such as MiniLM were trained for their mean, DistilBERT was
    never trained to put a sentence into its first token, and every word has its part in the first gradient.
    The two texts of a pair are told apart by the separator between them alone (token types are all zero).
    """

    def __init__(self, encoder: str, num_classes: int, length: int) -> None:
        super().__init__()
        config = pretrained.load("AutoConfig", encoder, "encoder")
        _check(encoder, config, length)
        self.name = encoder
        self.padding = 0 if config.pad_token_id is None else int(config.pad_token_id)
        self.vocabulary = int(config.vocab_size)
        # Drawn before the encoder is read, so that reading cannot change which weights the seed gives.
        head = nn.Linear(config.hidden_size, num_classes)
        self.encoder = _read(encoder, config)
        self.fc = head

    def features(self, x: Tensor) -> Tensor:
        if int(x.max()) >= self.vocabulary or int(x.min()) < 0:
            raise InputError(
                f"encoder={self.name}: it has no token {int(x.max() if x.min() >= 0 else x.min())}, only "
                f"0…{self.vocabulary - 1}; texts must be cut by its own tokenizer"
            )
        words = x != self.padding
        used = int(words.any(0).nonzero().max()) + 1 if bool(words.any()) else 1
        x, words = x[:, :used], words[:, :used]
        # A text without a single word attends to its padding: attention over nothing is not a number.
        words = words | ~words.any(1, keepdim=True)
        states = self.encoder(input_ids=x, attention_mask=words.long()).last_hidden_state
        share = words.to(states.dtype).unsqueeze(2)
        mean: Tensor = (states * share).sum(1) / share.sum(1)
        return mean


def _check(encoder: str, config: Any, length: int) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(f"encoder={encoder}: it is an encoder with a decoder; only encoders are understood")
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and length > longest:
        raise InputError(f"encoder={encoder}: it reads at most {longest} tokens, but the texts have length={length}")


def _read(encoder: str, config: Any) -> nn.Module:
    """The encoder with float32 weights, all of them from the file."""
    module: nn.Module
    module, report = pretrained.load(
        "AutoModel", encoder, "encoder", config=config, use_safetensors=True, output_loading_info=True
    )
    if getattr(module, "pooler", None) is not None:
        module.pooler = None  # type: ignore[assignment]
    lost = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if lost:
        raise InputError(f"encoder={encoder}: its file lacks {len(lost)} of the encoder's weights, such as '{lost[0]}'")
    return module.to(torch.float32)
