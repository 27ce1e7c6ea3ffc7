"""Mutation tests: change the code in one place at a time and see whether a fast test fails.

    pytest --cov=src --cov-context=test tests/laws tests/methods tests/contract tests/golden tests/certificates
    python tools/mutation.py sample WORK core=50 engine=80 methods=120 metrics=20
    python tools/mutation.py run WORK before.jsonl
    python tools/mutation.py run WORK after.jsonl before.jsonl         # only mutants that survived before

`sample` draws places of the code, and for each place one of cosmic-ray's mutants. `run` tries them in copies of the
repository, with tests that execute the changed statement, the small ones first, until one fails. It
prints survivors and continues where it was stopped. The tests' `.coverage` says which tests execute what. Needs
cosmic-ray and pytest-cov in a virtual environment that also has the project's packages.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import random
import resource
import shutil
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SEED, PROCESSES, SECONDS = 25, 2, 6.0
"""SECONDS: of tests that train, one second each, as evenly from all test files as possible; other tests run all."""
COMPARISONS = ({"Lt", "LtE", "Gt", "GtE"}, {"Eq", "NotEq"}, {"Is", "IsNot"})
SKIPPED = ("VariableInserter", "VariableReplacer", "ExceptionReplacer")
# Their tests start new processes or a Ray cluster, which takes minutes for every mutant.
WITHOUT = ("ray.py", "ray_cluster.py", "workers.py", "pool.py", "pooled.py", "jobs.py", "shared_tensors.py")
Mutant = dict[str, Any]


def plausible(operator: str) -> bool:
    """Whether the result can run at all: no shifts of floats, and no `is` for `==`."""
    name, *change = operator.removeprefix("core/").split("_")
    if name == "ReplaceBinaryOperator":
        return change[1] in ("Add", "Sub", "Mul", "Div") or set(change) == {"BitOr", "BitAnd"}
    if name == "ReplaceComparisonOperator":
        return any(set(change) <= kind for kind in COMPARISONS)
    return name not in SKIPPED


def irrelevant(source: str) -> set[tuple[int, int]]:
    """Places (line, column) where a mutant changes types or messages, or a check of the programmer's own errors.

    These are annotations outside `Field(...)`, assertions, what is raised, `__repr__`, type aliases, `TYPE_CHECKING`,
    the settings `frozen` and `strict`, the stars of `**settings`, and `@dataclass`, without which no import works.
    """
    lines, found = source.splitlines(), set()

    def places(node: Any) -> set[tuple[int, int]]:
        spans = {line: [0, len(lines[line - 1])] for line in range(node.lineno, node.end_lineno + 1)}
        spans[node.lineno][0], spans[node.end_lineno][1] = node.col_offset, node.end_col_offset
        return {(line, column) for line, span in spans.items() for column in range(*span)}

    tree = ast.parse(source)
    for node in ast.walk(tree):
        for note in filter(None, (getattr(node, "annotation", None), getattr(node, "returns", None))):
            found |= places(note).difference(*(places(n) for n in ast.walk(note) if isinstance(n, ast.Call)))
        alias = isinstance(node, ast.Assign) and node in tree.body and isinstance(node.value, ast.Subscript | ast.BinOp)
        checks = isinstance(node, ast.keyword) and node.arg in ("frozen", "strict", None)
        typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        message = isinstance(node, ast.Raise | ast.Assert) or getattr(node, "name", "") == "__repr__"
        if alias or checks or typing or message:
            found |= places(node)
        if isinstance(node, ast.ClassDef):
            found |= {(decorator.lineno, decorator.col_offset - 1) for decorator in node.decorator_list}
        if isinstance(node, ast.Dict):
            found |= {(v.lineno, v.col_offset - 2) for k, v in zip(node.keys, node.values, strict=True) if k is None}
    return found


def sample(work: Path, counts: dict[str, int]) -> None:
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    rng, drawn = random.Random(SEED), []
    operators = {name: get_operator(name)() for name in sorted(filter(plausible, operator_names()))}
    for package, count in counts.items():
        places: dict[tuple[Path, tuple[int, int]], list[tuple[str, int]]] = defaultdict(list)
        for file in sorted((ROOT / "src/fedspecial" / package).glob("*.py")):
            source = file.read_text()
            nodes, skip = list(ast_nodes(get_ast(source))), irrelevant(source)
            for name, operator in operators.items():
                starts = (start for node in nodes for start, _ in operator.mutation_positions(node))
                for occurrence, place in enumerate(starts):
                    if place not in skip:
                        places[file, place].append((name, occurrence))
        print(f"{package}: {sum(map(len, places.values()))} mutants in {len(places)} places, {count} places drawn")
        for file, place in rng.sample(list(places), min(count, len(places))):
            name, occurrence = rng.choice(places[file, place])
            before, after = (
                text.splitlines()
                for text in (file.read_text(), mutate_code(file.read_text(), operators[name], occurrence))
            )
            removed = len(after) < len(before)  # a decorator
            at = place[0] - 1 if removed else next(i for i, line in enumerate(before) if line != after[i])
            change = {"line": at + 1, "old": before[at], "new": "" if removed else after[at]}
            drawn.append({"package": package, "path": str(file.relative_to(ROOT)), **change})
    rng.shuffle(drawn)
    (work / "mutants.json").write_text(json.dumps(drawn, indent=1, ensure_ascii=False))


def place_of(mutant: Mutant, lines: list[str]) -> int | None:
    """Where its line is now, counted from 0, since other lines may have been added or removed."""
    same = [number for number, line in enumerate(lines) if line.strip() == mutant["old"].strip()]
    return min(same, key=lambda number: abs(number + 1 - mutant["line"])) if same else None


class KnownTests:
    """Which tests execute which lines, and how long a test takes, guessed from the number of lines it executes."""

    def __init__(self) -> None:
        import coverage

        data = coverage.CoverageData(ROOT / ".coverage")
        data.read()
        self.lines: dict[str, dict[int, set[str]]] = {}
        for file in data.measured_files():
            by_line = data.contexts_by_lineno(file).items()
            tests = {line: {name.split("|")[0] for name in names if name} for line, names in by_line}
            self.lines[os.path.relpath(file, ROOT)] = tests
        sizes = Counter(test for lines in self.lines.values() for tests in lines.values() for test in tests)
        self.seconds = {test: 0.05 if size < 150 else 0.2 if size < 600 else 1.0 for test, size in sizes.items()}

    def of(self, mutant: Mutant) -> list[str]:
        """Tests of the statement; for what runs at import, of the file."""

        def first(node: Any) -> int:
            return int(min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))]))

        lines, source = self.lines.get(mutant["path"], {}), (ROOT / mutant["path"]).read_text()
        place = place_of(mutant, source.splitlines())
        if place is None:
            return []
        tree, at = ast.parse(source), place + 1
        around = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and first(n) <= at <= (n.end_lineno or at)]
        inner: Any = max(around, key=first)
        last = inner.body[0].lineno - 1 if isinstance(getattr(inner, "body", None), list) else inner.end_lineno
        tests = set().union(*(lines.get(line, set()) for line in range(first(inner), max(last, at) + 1)))
        tests = tests or set().union(*lines.values())
        by_file: dict[str, list[str]] = defaultdict(list)
        for test in sorted(tests, key=lambda test: (self.seconds[test], test)):
            by_file[test.split("::")[0]].append(test)
        rank = {test: number for some in by_file.values() for number, test in enumerate(some)}
        chosen, spent = [test for test in sorted(tests) if self.seconds[test] < 1], 0.0
        for test in sorted(tests.difference(chosen), key=lambda test: (rank[test], test)):
            spent += self.seconds[test]
            if spent <= SECONDS:
                chosen.append(test)
        return chosen


class Selected:
    """Runs these tests alone, in this order."""

    def __init__(self, tests: list[str]) -> None:
        self.place = {test: number for number, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self.place), key=lambda i: self.place[i.nodeid])


def survives(copy: Path, mutant: Mutant, tests: list[str]) -> bool | None:
    """Whether all tests pass with this mutant; None if its line is no longer there."""
    file = copy / mutant["path"]
    source = file.read_text()
    lines = source.splitlines(keepends=True)
    at = place_of(mutant, lines)
    if at is None:
        return None
    lines[at] = lines[at].replace(mutant["old"].strip(), mutant["new"].strip())
    file.write_text("".join(lines))
    Path(importlib.util.cache_from_source(file)).unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        os.setpgrp()
        os.chdir(copy)
        sys.path[:0], os.environ["PYTHONPATH"] = [str(copy / "src"), str(copy / "tests")], str(copy / "src")
        resource.setrlimit(resource.RLIMIT_CPU, (120, 120))  # a mutant may never end
        output = os.open(copy / "last.log", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        files = list(dict.fromkeys(test.split("::")[0] for test in tests))
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        options = "-x -q -p no:cacheprovider -p pytest_timeout --timeout 0"
        os._exit(int(pytest.main([*options.split(), *files], plugins=[Selected(tests)])))
    end, done, status = time.monotonic() + 1200, 0, 0
    while not done and time.monotonic() < end:
        time.sleep(0.05)
        done, status = os.waitpid(child, os.WNOHANG)
    if not done:
        os.killpg(child, 9)
        _, status = os.waitpid(child, 0)
    file.write_text(source)
    Path(importlib.util.cache_from_source(file)).unlink(missing_ok=True)
    return os.waitstatus_to_exitcode(status) in (0, 5)


def run(work: Path, out: Path, again: Path | None) -> None:
    """Each process takes every n-th mutant, in a copy of its own, in forks that have imported all but fedspecial."""
    for name in ("hypothesis", "numpy", "pydantic", "torch._dynamo", "torch.func", "yaml"):
        __import__(name)
    mutants, known = json.loads((work / "mutants.json").read_text()), KnownTests()
    before, done = ([json.loads(line) for line in file.read_text().splitlines()] if file and file.exists() else []
                    for file in (again, out))  # fmt: skip
    wanted = {entry["number"] for entry in before if entry["survived"]} if again else set(range(len(mutants)))
    wanted = {number for number in wanted if not mutants[number]["path"].endswith(WITHOUT)}
    pending = sorted(wanted - {entry["number"] for entry in done})
    workers = []
    for index in range(PROCESSES):
        copy = work / f"copy-{index}"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "site", "__pycache__", ".*_cache"))
        if child := os.fork():
            workers.append(child)
            continue
        for number in pending[index::PROCESSES]:
            mutant, tests = mutants[number], known.of(mutants[number])
            if not done and number == pending[index] and not survives(copy, {**mutant, "new": mutant["old"]}, tests):
                sys.exit(f"the tests fail without a mutant: see {copy / 'last.log'}")
            survived = survives(copy, mutant, tests)
            entry = {"number": number, "package": mutant["package"], "survived": survived is not False}
            with out.open("a") as results:
                results.write(json.dumps({**entry, "log": (copy / "last.log").read_text()[-200:]}) + "\n")
            if survived is not False:
                place = f"{mutant['path'].removeprefix('src/fedspecial/')}:{mutant['line']}"
                note = f"{len(tests)} tests" if survived else "the line is gone"
                print(
                    f"- [{number}] {place} `{mutant['old'].strip()}` → `{mutant['new'].strip()}` ({note})", flush=True
                )
        os._exit(0)
    for worker in workers:
        os.waitpid(worker, 0)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    for package in sorted({entry["package"] for entry in found}):
        alive = [entry["survived"] for entry in found if entry["package"] == package]
        print(f"{package}: {alive.count(False)} of {len(alive)} killed")


if __name__ == "__main__":
    command, work, *rest = sys.argv[1], Path(sys.argv[2]).resolve(), *sys.argv[3:]
    work.mkdir(parents=True, exist_ok=True)
    if command == "sample":
        sample(work, {name: int(count) for name, count in (text.split("=") for text in rest)})
    else:
        run(work, work / rest[0], work / rest[1] if len(rest) > 1 else None)
