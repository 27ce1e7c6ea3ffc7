"""The arrows of docs/concepts/architecture.md point inwards only, and what must be light stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedspecial

SOURCE = Path(fedspecial.__file__).parent

# Room → rooms it may import; `errors` and `config` are leaves that everyone may use.
MAY_IMPORT = {
    "errors": set(),
    "config": {"errors", "methods", "models", "data"},
    "core": {"errors"},
    "metrics": {"core", "errors"},
    "theory": {"core", "errors"},
    "models": {"core", "errors"},
    "data": {"core", "errors"},
    "methods": {"core", "models", "errors"},
    "engine": {"core", "methods", "models", "data", "metrics", "config", "errors"},
    "report": {"core", "metrics", "theory", "errors"},
    "runs": {"core", "data", "methods", "engine", "models", "metrics", "report", "config", "errors"},
    "paper": {"core", "data", "methods", "engine", "report", "theory", "config", "runs", "errors"},
}


def imports_of(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "fedspecial" else [f"fedspecial.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("fedspecial.")}
    return rooms


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_arrows_point_inwards(room: str) -> None:
    files = [SOURCE / f"{room}.py"] if (SOURCE / f"{room}.py").exists() else sorted((SOURCE / room).rglob("*.py"))
    assert files
    for path in files:
        strangers = imports_of(path) - MAY_IMPORT[room] - {room}
        assert not strangers, f"{path.relative_to(SOURCE)} imports {sorted(strangers)}"


@pytest.mark.parametrize("module", ["fedspecial", "fedspecial.theory", "fedspecial.cli.main", "fedspecial.config"])
def test_it_imports_with_torch_blocked(module: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_files_are_short() -> None:
    long = {p.name: n for p in SOURCE.rglob("*.py") if (n := len(p.read_text(encoding="utf-8").splitlines())) > 300}
    assert not long


def test_nothing_unpickles() -> None:
    for path in SOURCE.rglob("*.py"):
        rooms = {
            alias.name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        assert not rooms & {"pickle", "dill", "joblib", "cloudpickle"}, path
        assert "torch.load(" not in path.read_text(encoding="utf-8"), path
