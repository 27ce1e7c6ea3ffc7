"""Settings of a run: how they are merged and checked. Resolving them twice changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fedspecial import InputError, methods
from fedspecial.config import Config, merge_settings, parse_settings, preset_names, resolve

settings = st.fixed_dictionaries(
    {"method": st.sampled_from(methods.names()), "clients": st.integers(5, 20)},
    optional={
        "rounds": st.integers(1, 50),
        "seed": st.integers(0, 2**31),
        "alpha": st.floats(0.01, 100),
        "client_lr": st.floats(0, 1),
        "server_lr": st.just("1/i") | st.floats(0, 2),
        "batch_norm": st.sampled_from(["average", "mean-only", "local", "bank"]),
        "domains": st.just("paper,neon") | st.just(["paper", "neon"]),
    },
).filter(lambda chosen: not (methods.find(chosen["method"]).personal and chosen.get("batch_norm") == "bank"))
"""Settings that can be combined: a bank of statistics needs a model that all clients share."""


@given(settings)
def test_resolving_resolved_settings_changes_nothing(chosen: dict[str, Any]) -> None:
    once = resolve(merge_settings(chosen))
    written = yaml.safe_load(yaml.safe_dump(once.flat()))
    assert resolve(written) == once
    assert resolve(merge_settings(written)) == once


@pytest.mark.parametrize("number", [np.float64(0.5), np.float32(0.5), torch.tensor(0.5)])
def test_numbers_of_numpy_and_torch_are_numbers(number: Any) -> None:
    merged = merge_settings({"method": "special", "lam": number, "client_lr": number, "rounds": np.int64(3)})
    assert yaml.safe_load(yaml.safe_dump(merged)) == merged
    assert (merged["lam"], merged["client_lr"], merged["rounds"]) == (0.5, 0.5, 3)


def test_an_object_that_is_no_setting_is_named() -> None:
    with pytest.raises(InputError, match="transform: unknown setting for method 'special'"):
        merge_settings({"method": "special", "transform": print})
    with pytest.raises(
        InputError, match="lam: a Python object of type builtin_function_or_method, which cannot be saved"
    ):
        merge_settings({"method": "special", "lam": print})


@given(settings)
def test_the_users_settings_override_all_others(chosen: dict[str, Any]) -> None:
    config = resolve(merge_settings(chosen)).config
    for key, value in chosen.items():
        expected = ("paper", "neon") if key == "domains" else value
        assert getattr(config, key) == expected


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_resolves_for_every_method(name: str) -> None:
    for method in methods.names():
        resolved = resolve(merge_settings({"benchmark": name, "method": method}))
        assert resolved.config.method == method


def test_the_users_mu_replaces_the_presets_lambda() -> None:
    method = resolve(merge_settings({"benchmark": "digit10", "mu": 0.5})).method
    assert (method.lam, method.mu) == (None, 0.5)
    assert resolve(merge_settings({"benchmark": "digit10"})).method.lam == 0.25


def test_local_steps_replace_local_epochs() -> None:
    config = resolve(merge_settings({"local_steps": 3})).config
    assert (config.local_steps, config.local_epochs) == (3, None)


def test_rates_follow_the_paper() -> None:
    """γ_G = 1/i; γ_L decays by 0.96 per round and restarts at each task."""
    config = Config(client_lr=1.0, rounds=10)
    assert [config.server_lr_of(task) for task in (1, 2, 4)] == [1, 0.5, 0.25]
    assert config.client_lr_of(3, 2) == pytest.approx(0.96**2)
    assert Config(client_lr=1.0, rounds=10, client_lr_reset=False).client_lr_of(3, 2) == pytest.approx(0.96**22)
    assert Config(client_lr=1.0, client_lr_decay=1.0).client_lr_of(3, 2) == 1.0
    assert Config(server_lr=0.7).server_lr_of(3) == 0.7


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["lam"], "'lam': expected key=value"),
        (["seed=1", "seed=2"], "seed: it is given twice"),
        (["domains="], "domains=: there is no value"),
    ],
)
def test_arguments_without_a_value_are_refused(pairs: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_settings(pairs)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"rounds": 0}, "rounds=0"),
        ({"clients_per_round": 9}, "clients_per_round=9: there are only clients=8"),
        ({"lam": -1}, "lam=-1"),
        ({"lam": float("nan")}, "lam=nan"),
        ({"client_lr": float("inf")}, "client_lr=inf"),
        ({"lam": 0.1, "mu": 0.1}, "lam=0.1 and mu=0.1 are both given"),
        ({"mu": 1, "optimizer": "adamw"}, "mu=1"),
        ({"method": "fedavg", "lam": 0.1}, "lam: unknown setting for method 'fedavg'"),
        ({"method": "specal"}, r"did you mean 'special'\?"),
        ({"lamb": 1}, r"did you mean 'lam'\?"),
        ({"benchmark": "digit-10"}, r"did you mean 'digit10'\?"),
        ({"local_steps": 1, "local_epochs": 1}, "are both given"),
        ({"server_lr": "1/t"}, "server_lr=1/t: expected 1/i or a number"),
        ({"batch_norm": "off"}, "batch_norm=off"),
        ({"method": "nowhere.py:Mine"}, r"method='nowhere\.py:Mine': cannot be imported"),
        ({"method": "json:dumps"}, "is not a Method"),
    ],
)
def test_invalid_settings_are_refused_by_name(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        resolve(merge_settings(chosen))
    assert "\n" not in str(refused.value)


def test_every_setting_says_whether_the_sites_of_a_federation_accept_it() -> None:
    """A site executes and reads only what it accepts from the server, so each new setting needs a decision."""
    from fedspecial.flower.governance.site_settings import NAMED, NAMES, SERVER_ONLY, VALUES

    for name in Config.model_fields:
        lists = [name in group for group in (VALUES, NAMED, NAMES, SERVER_ONLY)]
        assert sum(lists) == 1, (
            f"setting {name}: until it is listed, sites refuse it. Add it to one list of "
            "flower/governance/site_settings.py: VALUES if the clients compute with it (a number, a switch or a fixed "
            "choice), SERVER_ONLY if only the server does or if it names a file, folder, host or device"
        )
