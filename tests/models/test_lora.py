"""A peft LoRA model, as it is: only its adapters and its head are sent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedspecial
from fedspecial import Benchmark, Domain, Update
from fedspecial.core.messages import update_size
from toy_problems import learn

# peft and transformers use names that they have deprecated themselves.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")

HIDDEN, LAYERS, RANK, CLASSES = 16, 2, 2, 2
# In every layer two adapted matrices (query, value), each with A (rank × hidden) and B (hidden × rank); and the head.
TRAINABLE = LAYERS * 2 * (2 * RANK * HIDDEN) + (HIDDEN * CLASSES + CLASSES)


def words() -> Benchmark:
    """Token ids: the two classes use different tokens."""
    domains = []
    for task in range(2):
        y = torch.arange(64) % 2
        x = torch.randint(1, 10, (64, 6), generator=torch.Generator().manual_seed(task)) + 20 * y[:, None]
        domains.append(Domain.of(f"t{task + 1}", (x, y), (x, y)))
    return Benchmark("words", tuple(domains), ("good", "bad"), kind="text")


def lora() -> nn.Module:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, num_labels=CLASSES,
    )  # fmt: skip
    adapters = peft.LoraConfig(task_type="SEQ_CLS", r=RANK, target_modules=["query", "value"])
    made: nn.Module = peft.get_peft_model(transformers.BertForSequenceClassification(config), adapters)
    return made


def test_only_the_adapters_and_the_head_are_sent(tmp_path: Path) -> None:
    assert TRAINABLE == 290
    result = learn(tmp_path / "run", "special", words(), model=lora(), rounds=1, lam=0.1)
    assert result.bytes_up == update_size(Update(0, {"theta": torch.zeros(TRAINABLE)}, 1, 1, 0.0))
    assert 4 * TRAINABLE < result.bytes_up < 4 * TRAINABLE + 400
    trained = load_file(tmp_path / "run" / "model.safetensors")
    assert sum(tensor.numel() for tensor in trained.values()) == TRAINABLE
    assert all("lora_" in name or "modules_to_save" in name for name in trained)
    x = words().domains[0].test.x
    loaded = fedspecial.load(tmp_path / "run", model=lora)
    assert torch.allclose(loaded.predict(x), result.model(x).logits.softmax(1), atol=1e-6)
