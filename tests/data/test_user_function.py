"""``benchmark=file.py:function``: a benchmark from the user's code works everywhere, and errors are one clear line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import fedspecial
from fedspecial.data import catalogue
from fedspecial.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CODE = """
import torch
from fedspecial import Benchmark, Domain


def part(size, shift, seed):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(size) % 2
    return torch.randn(size, 4, generator=generator) + y.view(-1, 1) + shift, y


def domains_of(seed):
    return [Domain.of(name, part(60, shift, seed), part(20, shift, seed)) for name, shift in (("a", 0.0), ("b", 2.0))]


def table(data=None, domains=None, cap=None, seed=0):
    chosen = [domain for domain in domains_of(seed) if domains is None or domain.name in domains]
    print("called with", data, domains, cap, seed)
    return Benchmark("mine", tuple(chosen), ("no", "yes"), kind="table", licence="CC0")


def anything(**settings):
    assert sorted(settings) == ["cap", "data", "domains", "image_size", "seed"]
    return domains_of(settings["seed"])


def raises():
    raise RuntimeError("no\\nconnection")


def refuses():
    from fedspecial import InputError
    raise InputError("the scanner is switched off")


def needs_more(seed, scanner):
    return domains_of(seed)


def returns_dict():
    return {}


def returns_nothing_in_a_list():
    return []


not_a_function = 3
"""

SMALL = ("model=mlp", "width=8", "rounds=2", "local_epochs=1", "clients=2", "clients_per_round=2", "alpha=5")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CODE, encoding="utf-8")
    return path


def invoke(*arguments: str) -> Any:
    from typer.testing import CliRunner

    from fedspecial.cli.main import app

    return CliRunner().invoke(app, list(arguments))


def call(*arguments: str) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_list_of_domains_becomes_a_benchmark(file: Path) -> None:
    benchmark = catalogue.load(f"{file}:domains_of", seed=3)
    assert benchmark.name == "domains_of"
    assert benchmark.task_names == ["a", "b"]
    assert benchmark.classes == ("0", "1")


def test_a_benchmark_is_used_as_it_is(file: Path) -> None:
    benchmark = catalogue.load(f"{file}:table")
    assert (benchmark.name, benchmark.classes, benchmark.kind, benchmark.licence) == (
        "mine",
        ("no", "yes"),
        "table",
        "CC0",
    )


def test_the_function_gets_the_settings_that_it_has_parameters_for(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalogue.load(f"{file}:table", data=tmp_path, domains=("b",), cap=10, seed=7)
    assert capsys.readouterr().out.strip() == f"called with {tmp_path} ('b',) 10 7"
    assert catalogue.load(f"{file}:anything", seed=7).task_names == ["a", "b"]


def test_domains_are_selected_and_ordered_for_a_function_without_that_parameter(file: Path) -> None:
    assert catalogue.load(f"{file}:domains_of", domains=("b", "a")).task_names == ["b", "a"]
    with pytest.raises(InputError, match=r"domains=c: .* has no such domain, only a, b"):
        catalogue.load(f"{file}:domains_of", domains=("a", "c"))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("nowhere", "there is no 'nowhere' in"),
        ("not_a_function", "'not_a_function' is not a function"),
        ("raises", "the function raised RuntimeError: no connection, mine.py line"),
        ("refuses", "the scanner is switched off"),
        ("needs_more", "parameter 'scanner' needs a default; the function is called with data, domains, cap"),
        ("returns_dict", "the function returned a value of type dict, expected a Benchmark or a list of Domain"),
        ("returns_nothing_in_a_list", "the function returned an empty list, expected a Benchmark or a list of Domain"),
    ],
)
def test_a_function_that_cannot_be_used_is_reported_in_one_line(file: Path, function: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        catalogue.load(f"{file}:{function}")
    message = str(caught.value)
    assert message.startswith(f"benchmark='{file}:{function}': ")
    assert expected in message
    assert "\n" not in message


def test_a_setting_that_the_function_cannot_use_is_refused(file: Path) -> None:
    with pytest.raises(InputError, match=r"cap=5: the function of benchmark='.*' has no parameter 'cap'"):
        catalogue.load(f"{file}:domains_of", cap=5)


def test_the_command_line_reports_a_missing_file_in_one_line() -> None:
    result = invoke("run", "benchmark=nowhere.py:mine")
    assert result.exit_code == 2
    assert "benchmark='nowhere.py:mine': cannot be imported" in " ".join(result.output.split())


def test_a_run_of_the_command_line_can_be_evaluated_and_resumed(file: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    call("run", f"benchmark={file}:table", *SMALL, f"out={run}")
    assert yaml.safe_load((run / "config.yaml").read_text())["benchmark"] == f"{file}:table"
    assert "a: " in call("evaluate", str(run))
    assert fedspecial.resume(run).tasks == ["a", "b"]


def test_a_yaml_file_can_name_the_function(file: Path, tmp_path: Path) -> None:
    settings = {"benchmark": f"{file}:table", **dict(p.split("=") for p in SMALL)}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(settings))
    call("run", str(tmp_path / "mine.yaml"), f"out={tmp_path / 'run'}")
    assert (tmp_path / "run" / "result.json").exists()


def test_python_accepts_the_name_of_a_function(file: Path, tmp_path: Path) -> None:
    settings = {key: yaml.safe_load(value) for key, value in (pair.split("=") for pair in SMALL)}
    result = fedspecial.run(f"{file}:table", out=tmp_path / "run", **settings)
    assert result.benchmark == "mine"


@pytest.mark.usefixtures("drawn_figures")
def test_its_data_can_be_checked_and_shown(file: Path, tmp_path: Path) -> None:
    assert "a: 60 train, 20 test, 4, 2 labels" in call("data", "check", f"{file}:table")
    out = tmp_path / "mine.png"
    call("data", "show", f"{file}:table", "clients=2", "clients_per_round=2", "alpha=5", "--out", str(out))
    assert out.exists()


def test_comparing_all_methods_asks_for_their_names(file: Path) -> None:
    result = invoke("compare", f"{file}:table", "--methods", "all")
    assert result.exit_code == 2
    assert "name the methods" in " ".join(result.output.split())
