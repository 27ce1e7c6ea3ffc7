"""Packages import only what docs/concepts/architecture.md allows, and some modules must not need torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedspecial

SOURCE = Path(fedspecial.__file__).parent

# Package → packages it may import.
MAY_IMPORT = {
    "errors": set(),
    "config": {"core", "errors", "methods", "models", "data", "objectives"},
    "core": {"errors"},
    "metrics": {"core", "errors"},
    "theory": {"core", "errors"},
    "objectives": {"core", "errors"},
    "models": {"core", "errors"},
    "data": {"core", "errors"},
    "methods": {"core", "models", "objectives", "errors"},
    "engine": {"core", "methods", "models", "data", "metrics", "objectives", "config", "errors"},
    "report": {"core", "metrics", "theory", "errors"},
    "runs": {"core", "data", "methods", "engine", "models", "metrics", "objectives", "report", "config", "errors"},
    "paper": {"core", "data", "metrics", "methods", "engine", "report", "theory", "config", "runs", "errors"},
    "flower": {"core", "data", "methods", "engine", "models", "objectives", "config", "runs", "errors", "__version__"},
    "ui": {"core", "theory", "report", "flower", "errors", "__version__"},
}

# The same between the folders of `engine`: what aggregates and what runs clients does not know the loop.
LOOP = {"asynchronous", "estimate", "in_flight", "loop", "round", "run", "stats"}
ENGINE_MAY_NOT_IMPORT = {
    "aggregation": LOOP | {"clients", "pools", "inprocess"},
    "clients": LOOP | {"pools", "inprocess"},
    "pools": LOOP | {"inprocess"},
}

# The same between the parts of `flower`: `arrays`, `grid` and `logs` are shared, and governance works without Flower.
FLOWER_MAY_IMPORT = {
    "arrays": {"logs"},
    "grid": set(),
    "logs": set(),
    "governance": {"logs"},
    "strategy": {"arrays", "governance", "logs"},
    "app": {"arrays", "governance", "logs"},
    "ops": {"arrays", "grid", "logs", "governance", "strategy", "app"},
}


def imports_of(path: Path, package: str = "fedspecial") -> set[str]:
    """The parts of a package that a file imports."""
    parts, depth = set(), package.count(".") + 1
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != package else [f"{package}.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        parts |= {name.split(".")[depth] for name in names if name.startswith(f"{package}.")}
    return parts


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_allowed_packages(package: str) -> None:
    files = (
        [SOURCE / f"{package}.py"] if (SOURCE / f"{package}.py").exists() else sorted((SOURCE / package).rglob("*.py"))
    )
    assert files
    for path in files:
        forbidden = imports_of(path) - MAY_IMPORT[package] - {package}
        assert not forbidden, f"{path.relative_to(SOURCE)} imports {sorted(forbidden)}"


@pytest.mark.parametrize("part", ENGINE_MAY_NOT_IMPORT)
def test_aggregation_clients_and_pools_do_not_know_the_loop(part: str) -> None:
    files = sorted((SOURCE / "engine" / part).glob("*.py"))
    assert len(files) > 1
    for path in files:
        forbidden = imports_of(path, "fedspecial.engine") & ENGINE_MAY_NOT_IMPORT[part]
        assert not forbidden, f"{path.relative_to(SOURCE)} imports {sorted(forbidden)}"


@pytest.mark.parametrize("part", FLOWER_MAY_IMPORT)
def test_a_part_of_flower_imports_only_allowed_parts(part: str) -> None:
    folder = SOURCE / "flower"
    files = [folder / f"{part}.py"] if (folder / f"{part}.py").exists() else sorted((folder / part).glob("*.py"))
    assert files
    for path in files:
        forbidden = imports_of(path, "fedspecial.flower") - FLOWER_MAY_IMPORT[part] - {part}
        assert not forbidden, f"{path.relative_to(SOURCE)} imports {sorted(forbidden)}"


def test_every_part_of_flower_has_an_import_rule() -> None:
    parts = {path.stem for path in (SOURCE / "flower").iterdir() if not path.name.startswith("_")}
    assert parts == set(FLOWER_MAY_IMPORT)


@pytest.mark.parametrize(
    "module", ["fedspecial", "fedspecial.theory", "fedspecial.cli.main", "fedspecial.config", "fedspecial.ui.server"]
)
def test_a_light_module_imports_with_torch_blocked(module: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_help_needs_neither_torch_nor_numpy() -> None:
    code = "import sys; sys.modules |= dict(torch=None, numpy=None); sys.argv = ['fedspecial', '--help']; "
    code += "from fedspecial.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_files_are_short() -> None:
    long = {p.name: n for p in SOURCE.rglob("*.py") if (n := len(p.read_text(encoding="utf-8").splitlines())) > 300}
    assert not long


BETWEEN_LOCAL_PROCESSES = SOURCE / "engine" / "pools" / "workers.py"


def test_only_the_local_worker_processes_of_a_run_exchange_pickles() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        imported = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        }
        unpicklers = imported & {"pickle", "dill", "joblib", "cloudpickle"}
        assert not unpicklers or path == BETWEEN_LOCAL_PROCESSES, path
        assert "torch.load(" not in text, path
