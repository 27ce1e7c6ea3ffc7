"""Frozen weights on Flower: they are not sent, and a site whose frozen weights differ takes no part."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from flower_fixtures import SHORT, SITES, federate, finished, grid_of, rounds_of, settings_of

from fedspecial.errors import InputError
from toy_problems import learn_settings

pytestmark = pytest.mark.usefixtures("rendered", "unpictured")

FILE = """
import math, torch
from torch import nn

class Net(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.body = nn.Linear(math.prod(input_shape), 8).requires_grad_(False)
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.fc(torch.tanh(self.body(x.flatten(1))))
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(FILE)
    return f"{tmp_path / 'net.py'}:Net"


def test_the_model_is_that_of_one_process_and_only_trainable_weights_are_sent(tmp_path: Path, model: str) -> None:
    settings = {**SHORT, "model": model, "width": None}
    run = federate(tmp_path, "special", grid_of(tmp_path, code=[model]), **{**settings, "width": ""})
    alone = learn_settings(tmp_path / "alone", **{**settings_of("special"), **settings}, clients=len(SITES))
    assert finished(run)["model_sha256"] == alone.model_sha256
    assert len(list(run.glob("frozen-*.safetensors"))) == 1
    trainable = 8 * 10 + 10
    (line,) = rounds_of(run)
    assert all(4 * trainable < update["bytes"] < 4 * trainable + 1500 for update in line["updates"])


def test_a_site_with_other_frozen_weights_is_refused_before_round_1(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from fedspecial.flower.app.site import Site

    own = Site.frozen_sha256
    monkeypatch.setattr(Site, "frozen_sha256", lambda site: "0" * 64 if site.name == "west" else own(site))
    settings = {**SHORT, "model": model, "width": "", "wait_seconds": 1.0, "quorum": 0.75}
    with caplog.at_level(logging.WARNING, "fedspecial.flower"):
        run = federate(tmp_path, "fedavg", grid_of(tmp_path, code=[model]), **settings)
    refused = [text for text in caplog.messages if "frozen weights" in text]
    assert refused
    assert "the frozen weights of site 'west' differ from the server's (hash 000000000000, not " in refused[0]
    (line,) = rounds_of(run)
    assert {update["site"] for update in line["updates"]} == {"north", "south", "east"}
    with pytest.raises(InputError, match="only 3 sites connected, a round needs 4"):
        federate(tmp_path / "all", "fedavg", grid_of(tmp_path, code=[model]), **{**settings, "quorum": 1.0})
