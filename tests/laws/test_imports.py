"""User code is found by ``file.py:Name``; every failure is reported in one line that names the setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedspecial.core.imports import load_object
from fedspecial.errors import InputError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_an_object_of_a_file_is_found(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.py", "def answer():\n    return 42\n")
    assert load_object(f"{file}:answer", "benchmark")() == 42


def test_an_object_of_an_installed_module_is_found() -> None:
    assert load_object("json:dumps", "model")([1]) == "[1]"


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.py", "value = 1\n")
    assert load_object(f"{file}:value", "model") == 1
    write(file, "value = 'two'\n")
    assert load_object(f"{file}:value", "model") == "two"


def test_files_of_the_same_name_do_not_replace_each_other(tmp_path: Path) -> None:
    first = write(tmp_path / "a" / "mine.py", "class Mine:\n    pass\n")
    second = write(tmp_path / "b" / "mine.py", "class Mine:\n    pass\n")
    found = [load_object(f"{file}:Mine", "model") for file in (first, second)]
    assert found[0].__module__ != found[1].__module__


def test_a_dataclass_can_be_defined_in_a_file(tmp_path: Path) -> None:
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n@dataclass\nclass Mine:\n    a: int\n"
    )
    assert load_object(f"{write(tmp_path / 'mine.py', text)}:Mine", "model")(3).a == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import does_not_exist\n", "cannot be imported (ModuleNotFoundError: No module named 'does_not_exist')"),
        ("def broken(:\n", "cannot be imported (SyntaxError: "),
        ("1 / 0\n", "cannot be imported (ZeroDivisionError: division by zero, mine.py line 1)"),
        ("def make_date():\n    pass\n", "there is no 'make_data' in {file} (did you mean 'make_date'?)"),
    ],
)
def test_a_file_that_cannot_be_used_is_reported_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    file = write(tmp_path / "mine.py", text)
    with pytest.raises(InputError) as caught:
        load_object(f"{file}:make_data", "benchmark")
    message = str(caught.value)
    assert message.startswith(f"benchmark='{file}:make_data': ")
    assert expected.format(file=file) in message
    assert "\n" not in message


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InputError, match=r"model='nowhere\.py:Mine': cannot be imported \(No such file .*nowhere\.py"):
        load_object("nowhere.py:Mine", "model")


@pytest.mark.parametrize("spec", ["mine.py", "mine.py:", ":Mine"])
def test_a_name_without_both_parts_is_refused(spec: str) -> None:
    with pytest.raises(InputError, match=r"write file\.py:Name or package\.module:Name"):
        load_object(spec, "model")
