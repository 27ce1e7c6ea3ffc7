"""Presets name a benchmark of the catalogue and use known settings; those of the paper have the paper's values."""

from __future__ import annotations

import pytest

from fedspecial.config import Config, merge_settings, preset_names, preset_settings
from fedspecial.data import catalogue

PAPER = ["digit10", "vlcs", "pacs", "dn4il", "cifar100", "glue"]
CPU = ["digit10-cpu", "pacs-cpu", "cifar100-cpu", "text-cpu", "heart", "gas-drift", "spoken-digits"]
OWN = ["fdu-mtl", "folders"]


def test_every_benchmark_has_its_preset() -> None:
    assert set(PAPER + CPU + OWN) <= set(preset_names())


@pytest.mark.parametrize("name", PAPER + CPU + OWN)
def test_a_preset_can_be_resolved(name: str) -> None:
    settings = preset_settings(name)
    entry = catalogue.entry(settings["benchmark"])
    domains = settings.get("domains")
    catalogue.choose_domains(entry, tuple(domains) if domains else None)
    catalogue.merge_options(entry, settings.get("options", {}))
    assert set(settings) - {"methods", "kinds"} <= set(Config.model_fields)
    found = merge_settings({"benchmark": name, "method": "special"})
    assert found["benchmark"] == entry.name
    assert found["lam"] == settings["methods"]["special"]["lam"]


@pytest.mark.parametrize(
    ("name", "rounds", "alpha", "lam", "lam_c"),
    [
        ("digit10", 20, 0.1, 0.25, 0.2),
        ("vlcs", 20, 0.3, 0.40, 0.2),
        ("pacs", 30, 0.3, 0.05, 0.1),
        ("dn4il", 30, 5, 0.10, 0.2),
    ],
)
def test_presets_of_the_paper_have_its_values(name: str, rounds: int, alpha: float, lam: float, lam_c: float) -> None:
    settings = preset_settings(name)
    assert (settings["rounds"], settings["alpha"], settings["local_epochs"]) == (rounds, alpha, 5)
    assert (settings["clients"], settings["clients_per_round"], settings["batch_size"]) == (8, 4, 32)
    assert (settings["client_lr"], settings["client_lr_decay"], settings["server_lr"]) == (0.001, 0.96, "1/i")
    assert settings["methods"]["special"]["lam"] == lam
    assert settings["methods"]["special-c"]["lam"] == lam_c
    assert settings["methods"]["pfeddil"]["threshold"] == (0.8 if name == "digit10" else 0.5)
