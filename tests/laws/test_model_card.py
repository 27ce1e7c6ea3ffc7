"""The card of a run: valid metadata of the Hugging Face hub, and how to make the model again."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

import fedspecial
from toy_problems import learn, rotated_blobs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card") / "run"
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    learn(folder, "special", model=model, rounds=1)
    return folder


def test_the_hub_reads_the_metadata_of_the_card(folder: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    data = hub.ModelCard.load(folder / "README.md").data
    assert data.library_name == "fedspecial"
    assert data.pipeline_tag == "tabular-classification"
    assert "federated-learning" in data.tags
    scores = {result.metric_name: result.metric_value for result in data.eval_results}
    result = fedspecial.resume(folder)
    assert scores["ACC"] == result.acc
    assert [scores[f"accuracy on {name}"] for name in result.tasks] == result.matrix[-1]


def test_the_card_of_a_run_from_python_says_how_to_pass_the_objects_again(folder: Path) -> None:
    card = (folder / "README.md").read_text()
    assert '`fedspecial.run(benchmark=…, model=…, config="config.yaml")` in Python' in card
    assert "with the benchmark 'blobs' and model 'Sequential' that the run was started with" in card


def test_the_call_on_the_card_makes_the_same_model(folder: Path, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    first = learn(tmp_path / "first", "special", model=model, rounds=1)
    config = tmp_path / "first" / "config.yaml"
    again = fedspecial.run(benchmark=rotated_blobs(), model=model, config=config, out=tmp_path / "again")
    assert again.model_sha256 == first.model_sha256
