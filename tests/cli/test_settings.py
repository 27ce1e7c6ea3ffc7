"""Every setting has a description, from which listings, help, the schema and pages are generated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from fedspecial import methods
from fedspecial.config import GROUPS, Config, preset_names, preset_settings
from fedspecial.config.describe import common_settings, method_settings, settings_schema
from processes import ENVIRONMENT, Outcome

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ROOT = Path(__file__).parents[2]
Call = Callable[..., Outcome]


def test_every_setting_has_a_description_and_belongs_to_one_topic() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(Config.model_fields)
    for rows in common_settings().values():
        for row in rows:
            assert row.type != "any"
            assert row.description.endswith("."), row.name
            assert len(row.description) < 130, row.name


def test_list_settings_shows_name_type_default_and_description(call: Call) -> None:
    lines = call("list", "settings").stdout.splitlines()
    line = next(line for line in lines if line.startswith("rounds "))
    assert line.split(maxsplit=5)[:5] == ["rounds", "whole", "number", "≥", "1"]
    assert "20" in line
    assert "Communication rounds per" in line


def test_list_settings_of_a_method_shows_only_its_own(call: Call) -> None:
    output = call("list", "settings", "special-c").stdout
    assert "step_scaled" in output
    assert "rounds" not in output
    assert "fedavg has no settings of its own" in call("list", "settings", "fedavg").stdout
    assert "did you mean 'special'?" in call("list", "settings", "specal").error_line
    assert "only 'list settings' takes a method" in call("list", "models", "special").error_line


def test_the_help_of_run_lists_every_setting(call: Call) -> None:
    output = call("run", "-h").stdout
    for name in Config.model_fields:
        assert f"\n{name}=" in output
    assert "fedspecial list settings METHOD" in output


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = settings_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid_in_the_schema(validator: Any, name: str) -> None:
    settings = preset_settings(name)
    for of_a_kind in settings.pop("kinds", {"any": {}}).values():
        validator.validate({**settings, **of_a_kind})


VALID: list[dict[str, Any]] = [
    {},
    {"lam": 0.1},
    {"method": "fedprox", "mu_prox": 0.1},
    {"method": "mine.py:Mine", "anything": 1},
    {"benchmark": {"object": "own data"}},
    {"domains": "a,b"},
    {"domains": ["a", "b"], "server_lr": 0.5},
    {"benchmark": "folders", "label_column": "y"},
]
INVALID: list[dict[str, Any]] = [
    {"lamm": 0.1},
    {"lam": "much"},
    {"lam": -1},
    {"rounds": 0},
    {"rounds": "many"},
    {"method": "fedavg", "lam": 0.1},
    {"mu_prox": 0.1},
    {"optimizer": "adam"},
    {"server_lr": "1/t"},
    {"momentum": 1},
    {"methods": {"special": {"mu_prox": 1}}},
    {"benchmark": {"name": "own data"}},
]


@pytest.mark.parametrize("settings", VALID, ids=str)
def test_the_schema_accepts_valid_settings(validator: Any, settings: dict[str, Any]) -> None:
    validator.validate(settings)


@pytest.mark.parametrize("settings", INVALID, ids=str)
def test_the_schema_refuses_invalid_settings(validator: Any, settings: dict[str, Any]) -> None:
    assert not validator.is_valid(settings)


def test_the_command_prints_the_schema(call: Call) -> None:
    assert json.loads(call("schema").stdout) == settings_schema()


def test_the_recorded_settings_of_a_run_are_valid_in_the_schema(validator: Any, finished_run: Path) -> None:
    validator.validate(yaml.safe_load((finished_run / "config.yaml").read_text()))


def test_the_generated_pages_match_the_code() -> None:
    """If this fails: make reference."""
    code = (
        "import sys; sys.path.insert(0, 'tools/docs'); import reference\n"
        "stale = [p.name for p, text in reference.pages().items() if p.read_text(encoding='utf-8') != text]\n"
        "assert not stale, f'run make reference; stale: {stale}'"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_file_may_have_settings_for_single_methods() -> None:
    from fedspecial.config import merge_settings, resolve

    given = {"benchmark": "digits-shift", "methods": {"special": {"lam": 0.7}, "fedprox": {"mu_prox": 0.3}}}
    assert resolve(merge_settings(given)).method.lam == 0.7
    assert resolve(merge_settings({**given, "method": "fedprox"})).method.mu_prox == 0.3
    assert resolve(merge_settings({**given, "lam": 0.9})).method.lam == 0.9


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("command", ["", "run", "data", "data list", "theory", "flower", "tune", "schema"])
def test_every_command_has_help(call: Call, command: str, option: str) -> None:
    outcome = call(*command.split(), option)
    assert outcome.code == 0
    assert "Usage: fedspecial" in outcome.stdout


def test_the_version_is_shown(call: Call) -> None:
    import fedspecial

    assert call("--version").stdout == f"fedspecial {fedspecial.__version__}\n"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("ru", "run"), ("run digits-sh", "digits-shift"), ("run loc", "local_epochs="), ("run method=fedp", "fedprox")],
)
def test_the_shell_completes_commands_and_settings(typed: str, offered: str) -> None:
    completion = {"_FEDSPECIAL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": f"fedspecial {typed}"}
    command = [sys.executable, "-m", "fedspecial"]
    done = subprocess.run(command, env=ENVIRONMENT | completion, capture_output=True, text=True, check=False)
    assert offered in done.stdout, done.stderr


def test_completion_can_be_installed() -> None:
    command = [sys.executable, "-m", "fedspecial", "--show-completion", "bash"]
    environment = ENVIRONMENT | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "_FEDSPECIAL_COMPLETE=complete_bash" in done.stdout, done.stderr
    assert os.environ.get("_FEDSPECIAL_COMPLETE") is None


def test_the_settings_of_a_method_are_those_of_its_class() -> None:
    from dataclasses import fields

    for name in methods.names():
        assert [row.name for row in method_settings(name)] == [field.name for field in fields(methods.find(name))]
