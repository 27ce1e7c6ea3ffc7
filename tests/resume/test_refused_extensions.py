"""An extension that cannot be done: one line that says why, and nothing has changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from runs import contents
from torch import nn

from fedspecial import Benchmark, Domain, InputError, resume, run
from fedspecial.runs import directory
from processes import Fork
from toy_problems import extend, first, learn, rotated_blobs

BLOBS = rotated_blobs()
NEW = BLOBS.domains[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two domains, started with Python objects."""
    path = tmp_path_factory.mktemp("runs") / "run"
    learn(path, "special", first(BLOBS, 2), model=_network(5))
    return path


def _network(width: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))


@pytest.fixture
def refused(folder: Path) -> Callable[..., str]:
    """The message of an extension that is refused."""

    def message(domains: Any = NEW, **given: Any) -> str:
        before = contents(folder)
        with pytest.raises(InputError) as found:
            extend(folder, domains, **{"benchmark": first(BLOBS, 2), "model": _network(5), **given})
        assert contents(folder) == before
        assert "\n" not in str(found.value)
        return str(found.value)

    return message


def test_another_class(refused: Callable[..., str]) -> None:
    labels = Domain.of("d3", (NEW.train.x, ["z"] * len(NEW.train)), (NEW.test.x, ["a"] * len(NEW.test)))
    assert "'z'" in refused(labels)
    numbers = Domain.of("d3", (NEW.train.x, NEW.train.y + 1), (NEW.test.x, NEW.test.y))
    assert "domain 'd3'" in refused(numbers)
    assert "is not a class" in refused(classes=("a", "b", "c", "d"))


def test_another_input_shape(refused: Callable[..., str]) -> None:
    wide = Domain.of("d3", (torch.zeros(96, 7), NEW.train.y), (torch.zeros(96, 7), NEW.test.y))
    assert "domain 'd3'" in refused(wide)


def test_another_model(refused: Callable[..., str]) -> None:
    assert "another model" in refused(model=_network(4))
    assert "model=Sequential: this run was started with a Python object" in refused(model=None)


def test_a_domain_that_was_learned_already_or_is_given_twice(refused: Callable[..., str]) -> None:
    assert refused(BLOBS.domains[1]) == "domain 'd2': the run has learned it already (its domains: d1, d2)"
    assert refused([NEW, NEW]) == "domain 'd3': it is given twice"
    assert "at least one domain" in refused([])


def test_a_name_in_place_of_an_object(refused: Callable[..., str]) -> None:
    assert "started with a Python object" in refused("d3")


def test_other_data_of_the_domains_that_were_learned(refused: Callable[..., str]) -> None:
    changed = replace(BLOBS.domains[0], test=BLOBS.domains[1].test)
    assert "another hash" in refused(benchmark=replace(BLOBS, domains=(changed, BLOBS.domains[1])))
    assert "another hash" in refused(benchmark=replace(BLOBS, domains=BLOBS.domains[1::-1]))


def test_settings_other_than_those_of_execution(refused: Callable[..., str]) -> None:
    assert "rounds=9: an extension keeps the settings of its run" in refused(rounds=9)


def test_a_setting_or_an_object_that_would_not_be_used(fork: Fork, finished_run: Path) -> None:
    """model=… and method=… are also names of arguments of `fedspecial.extend`."""
    before = contents(finished_run)
    for given in ("model=cnn", "method=fedavg", "benchmark=heart", "progress=true", "rounds=9"):
        line = fork("extend", finished_run, "photo", given).error_line
        assert line.startswith(f"{given.replace('true', 'True')}: an extension keeps the settings of its run")
    assert "zebra" in fork("extend", finished_run, "zebra").error_line
    assert contents(finished_run) == before
    for named in ({"model": _network(5)}, {"benchmark": first(BLOBS, 2)}, {"model": "cnn"}):
        with pytest.raises(InputError, match=r"an extension keeps the settings of its run.*leave it out"):
            extend(finished_run, "photo", **named)
    assert contents(finished_run) == before


def test_a_killed_run_is_resumed_with_its_own_model(fork: Fork, tiny: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fork("run", *tiny, f"out={folder}", kill_at=["training", 1])
    assert fork("resume", folder, "model=cnn").error_line.startswith("model=cnn: a resumed run keeps its settings")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("d2,well,30,C", r"t\.csv: row 42: column 'blood': 'C' is not one of A, B"),
        ("d2,well,old,A", r"t\.csv: row 42: column 'age': 'old' is not a number"),
        ("d2,dead,30,A", r"'dead' is not a class of"),
    ],
    ids=["category", "number", "class"],
)
def test_rows_of_a_table_that_the_model_has_no_input_for(row: str, message: str, tmp_path: Path) -> None:
    """Columns and categories are fixed when the run starts; an unknown category is refused and never dropped."""
    table, folder = tmp_path / "t.csv", tmp_path / "run"
    rows = [f"d{n % 2},{'ill' if n // 2 % 2 else 'well'},{20 + n},{'AB'[n % 3 % 2]}" for n in range(40)]
    table.write_text("\n".join(["domain,label,age,blood", *rows]) + "\n")
    settings = {"rounds": 1, "clients": 2, "clients_per_round": 2, "min_per_client": 2, "model": "logistic"}
    run("folders", data=str(table), out=folder, **settings)
    before = contents(folder)
    good = [f"d2,{'ill' if n % 2 else 'well'},{20 + n},A" for n in range(20)]
    table.write_text("\n".join([*table.read_text().splitlines(), row, *good]) + "\n")
    with pytest.raises(InputError, match=message) as found:
        extend(folder, "d2")
    assert "\n" not in str(found.value)
    assert contents(folder) == before


def test_a_folder_in_use(folder: Path, refused: Callable[..., str]) -> None:
    with directory.claimed(folder):
        assert "another process is working on this run" in refused()


def test_an_unfinished_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    learn(folder, "special", first(BLOBS, 2))
    (folder / "result.json").unlink()
    with pytest.raises(InputError, match="the run is not finished; resume it first"):
        extend(folder, NEW, benchmark=first(BLOBS, 2))


def test_a_method_that_trains_on_all_domains_in_every_task(tmp_path: Path) -> None:
    learn(tmp_path / "run", "joint", first(BLOBS, 2))
    with pytest.raises(InputError, match="method=joint: it trains on all domains in every task"):
        extend(tmp_path / "run", NEW, benchmark=first(BLOBS, 2))


@pytest.mark.parametrize(
    "settings", [{"stream": "blended", "blend_rounds": 2}, {"detect": "loss"}], ids=["blended", "detected"]
)
def test_a_stream_whose_borders_depend_on_what_follows(settings: dict[str, Any], tmp_path: Path) -> None:
    learn(tmp_path / "run", "special", first(BLOBS, 2), **settings)
    with pytest.raises(InputError, match="cannot be extended: its stream ends with its domains"):
        extend(tmp_path / "run", NEW, benchmark=first(BLOBS, 2))


def test_a_privacy_budget_that_is_used_up(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    learn(folder, "fedavg", first(BLOBS, 2), dp_clip=1.0, dp_epsilon=8.0)
    before = contents(folder)
    with pytest.raises(InputError, match="dp_epsilon=8: the privacy budget is used up after 6 rounds; another 3 would"):
        extend(folder, NEW, benchmark=first(BLOBS, 2))
    assert contents(folder) == before


def test_a_class_that_the_classes_of_a_list_of_domains_do_not_have(tmp_path: Path) -> None:
    """Without `classes`, the label set of a list is what occurs in it; it is fixed when the run starts."""
    domains = list(BLOBS.domains)
    two = [replace(d, train=_without(d.train, 2), test=_without(d.test, 2)) for d in domains[:2]]
    learn(tmp_path / "run", "fedavg", two)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'2' is not a class"):
        extend(tmp_path / "run", NEW, benchmark=two)
    learn(tmp_path / "named", "fedavg", Benchmark.of(two, classes=("0", "1", "2")))
    assert extend(tmp_path / "named", NEW, benchmark=Benchmark.of(two, classes=("0", "1", "2"))).tasks[-1] == "d3"


def _without(samples: Any, label: int) -> Any:
    return samples.take(torch.nonzero(samples.y != label).flatten().numpy())


def test_a_run_directory_of_format_2_can_be_resumed_and_extended(tmp_path: Path) -> None:
    """Format 2 had one hash of all data, and the domains were part of the hash of the settings."""
    from fedspecial.runs.provenance import data_sha256

    folder, whole = tmp_path / "run", learn(tmp_path / "whole", "special")
    learn(folder, "special", first(BLOBS, 2))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    about = config.pop("about")
    del about["data"], about["domains_sha256"]
    about |= {"format": 2, "data_sha256": data_sha256(first(BLOBS, 2))} | directory._seals(config, 2)
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "about": about}, sort_keys=False))
    with pytest.raises(InputError, match="another hash"):
        extend(folder, NEW, benchmark=replace(BLOBS, domains=BLOBS.domains[1::-1]))
    assert extend(folder, NEW, benchmark=first(BLOBS, 2)).model_sha256 == whole.model_sha256
    assert list(directory.about(folder)["data"]) == ["d1", "d2", "d3"]
    (folder / "result.json").unlink()
    assert resume(folder, benchmark=BLOBS).model_sha256 == whole.model_sha256
    assert json.loads((folder / "result.json").read_text())["tasks"] == ["d1", "d2", "d3"]


def test_a_changed_list_of_domains_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    learn(folder, "special", first(BLOBS, 2))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "domains": ["d1", "d9"]}, sort_keys=False))
    with pytest.raises(InputError, match="it was changed after the run began"):
        extend(folder, NEW, benchmark=first(BLOBS, 2))
