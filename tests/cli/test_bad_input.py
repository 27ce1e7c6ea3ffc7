"""Bad input gives one line that names the field and the value, and exit code 2. No file is created or overwritten."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedspecial
from fedspecial import Benchmark, Domain
from fedspecial.errors import InputError
from processes import Outcome, fresh

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.usefixtures("rendered")]

Call = Callable[..., Outcome]


def tree(folder: Path) -> dict[str, bytes | None]:
    """All files and folders with their contents."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


# The settings, and what the error message must contain.
RUN = {
    "a misspelt setting": ("lamm=1", "lamm", "did you mean 'lam'?"),
    "a misspelt common setting": ("client_per_round=2", "client_per_round", "did you mean 'clients_per_round'?"),
    "a setting of another method": ("method=fedavg lam=1", "lam", "fedavg has no settings of its own"),
    "a misspelt method": ("method=specal", "method='specal'", "did you mean 'special'?"),
    "a method unlike any known one": ("method=xyz", "method='xyz'", "known: fedavg, fedprox, fedcil, mfcl, srfdil"),
    "a method file that does not exist": ("method=nowhere.py:Mine", "method='nowhere.py:Mine'", "cannot be imported"),
    "a method class that does not exist": ("method=fedspecial.errors:Mine", "there is no 'Mine' in fedspecial.errors"),
    "a method file without its class": ("method=mine.py", "method='mine.py'", "method=mine.py:Class"),
    "more clients a round than clients": ("clients=3 clients_per_round=4", "per_round=4", "clients=3", "at most"),
    "a setting written as an option": ("--local-epochs 2", "'--local-epochs'", "local_epochs=VALUE"),
    "no clients": ("clients=0", "clients=0", "greater than or equal to 1"),
    "a negative lam": ("lam=-0.1", "lam=-0.1", "greater than or equal to 0"),
    "a lam that is not a number": ("lam=much", "lam=much", "valid number", "or 'auto'"),
    "lam nan": ("lam=nan", "lam=nan", "finite number"),
    "lam inf": ("lam=.inf", "lam=inf", "finite number"),
    "mu nan": ("mu=.nan", "mu=nan", "finite number"),
    "a negative mu_prox": ("method=fedprox mu_prox=-1", "mu_prox=-1", "greater than or equal to 0"),
    "client_lr nan": ("client_lr=.nan", "client_lr=nan", "finite number"),
    "a negative server_lr": ("server_lr=-1", "server_lr=-1", "expected 1/i or a number"),
    "server_lr nan": ("server_lr=nan", "server_lr=nan", "expected 1/i or a number"),
    "alpha zero": ("alpha=0", "alpha=0", "greater than 0"),
    "no workers": ("workers=0", "workers=0", "at least 1, or auto"),
    "alpha inf": ("alpha=.inf", "alpha=inf", "finite number"),
    "momentum one": ("momentum=1", "momentum=1", "less than 1"),
    "a seed that is not an integer": ("seed=1.5", "seed=1.5", "valid integer"),
    "a negative seed": ("seed=-1", "seed=-1", "greater than or equal to 0"),
    "no rounds": ("rounds=0", "rounds=0", "greater than or equal to 1"),
    "a cap of zero": ("cap=0", "cap=0", "greater than or equal to 1"),
    "an unknown optimizer": ("optimizer=adam", "optimizer=adam", "'sgd' or 'adamw'"),
    "an unknown batch_norm": ("batch_norm=global", "batch_norm=global", "'average', 'mean-only', 'local' or 'bank'"),
    "both lam and mu": ("lam=0.1 mu=2", "lam=0.1 and mu=2", "give one"),
    "mu with adamw": ("mu=2 optimizer=adamw", "mu=2", "give lam instead"),
    "steps and epochs": ("local_steps=3 local_epochs=2", "local_steps=3 and local_epochs=2", "give one"),
    "neither steps nor epochs": ("local_steps=null local_epochs=null", "local_epochs=null"),
    "a setting given twice": ("lam=1 lam=2", "lam", "given twice", "1", "2"),
    "the benchmark given twice": ("benchmark=heart", "benchmark", "given twice", "digits-shift", "heart"),
    "a setting without a value": ("domains=", "domains=", "no value"),
    "a value without a setting": ("photo", "'photo'", "expected key=value"),
    "no setting": ("=3", "'=3'", "expected key=value"),
    "data that is not read": ("--data .", "data=.", "built in and reads no files", "benchmark=folders"),
    "a domain that does not exist": ("domains=paper,foto", "domains=foto", "did you mean 'photo'?"),
    "a domain given twice": ("domains=paper,paper", "paper", "twice"),
    "a misspelt model": ("model=resnet", "model=resnet", "did you mean 'resnet18'?"),
    "a model that does not fit the data": ("model=text", "model=text", "kind 'image'"),
    "a width for a model without one": ("model=logistic width=4", "width=4", "logistic"),
    "weights that do not exist": ("weights=no.safetensors", "weights=no.safetensors", "cannot be read"),
}


@pytest.mark.parametrize("case", RUN)
def test_a_run_with_invalid_settings_is_refused_and_creates_nothing(call: Call, tmp_path: Path, case: str) -> None:
    settings, *expected = RUN[case]
    outcome = call("run", "digits-shift", *settings.split(), "out=new")
    for part in expected:
        assert part in outcome.error_line
    assert outcome.stdout == ""
    assert tree(tmp_path) == {}


def test_a_setting_of_several_types_counts_as_one_error(call: Call) -> None:
    assert "more)" not in call("run", "digits-shift", "lam=much", "out=new").error_line
    assert "(and 1 more)" in call("run", "digits-shift", "rounds=much", "clients=many", "out=new").error_line


def test_a_misspelt_benchmark_is_refused_with_a_suggestion(call: Call, tmp_path: Path) -> None:
    message = call("run", "digits-shft", "out=new").error_line
    assert "'digits-shft'" in message
    assert "did you mean 'digits-shift'?" in message
    assert tree(tmp_path) == {}


def test_a_missing_data_folder_is_reported_with_the_option_that_sets_it(call: Call, tmp_path: Path) -> None:
    assert "--data or FEDSPECIAL_DATA" in call("run", "digit10", "out=new").error_line
    assert "data=nowhere" in call("run", "digit10", "--data", "nowhere", "out=new").error_line
    assert tree(tmp_path) == {}


def test_an_existing_run_directory_is_not_changed(call: Call, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "thesis.tex").write_text("the only copy")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("also the only copy")
    before = tree(tmp_path)
    for name in ("old", "empty", "file", "."):
        message = call("run", "digits-shift", f"out={name}").error_line
        assert message.startswith(f"out={name}: it exists already; nothing was changed")
    assert tree(tmp_path) == before


def test_a_folder_that_cannot_be_written_is_named(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert call("run", "digits-shift", "out=file/run").error_line.startswith("out=file/run: cannot be created")
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        assert call("run", "digits-shift", "out=locked/run").error_line.startswith("out=locked/run: cannot be created")
    assert (tmp_path / "file").read_text() == ""


FILES = {
    "unfinished YAML": ("lam: [1", "settings.yaml: is not valid YAML"),
    "deep nesting": ("lam: " + "[" * 60_000, "settings.yaml: is not valid YAML (values are nested more than 100"),
    "a wrong tag": ("lam: !!bool x", "settings.yaml: is not valid YAML (a value does not fit its tag"),
    "a list": ("- lam\n- mu\n", "settings.yaml: expected lines of 'key: value'"),
    "no text": ("\x00\x01", "settings.yaml: is not valid YAML"),
    "nothing": ("", "settings.yaml: expected lines of 'key: value'"),
    "a misspelt setting": ("lamm: 1\n", "lamm"),
    "two settings that exclude each other": ("lam: 1\nmu: 2\n", "lam=1 and mu=2"),
}


@pytest.mark.parametrize("case", FILES)
def test_an_invalid_settings_file_is_refused(call: Call, tmp_path: Path, case: str) -> None:
    text, expected = FILES[case]
    (tmp_path / "settings.yaml").write_text(text)
    assert expected in call("run", "settings.yaml", "out=new").error_line
    assert not (tmp_path / "new").exists()


def test_a_file_as_benchmark_is_told_how_files_are_read(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("domain,label,x\n")
    assert "your own files are read with: folders --data mine.csv" in call("run", "mine.csv").error_line


def test_a_settings_file_that_does_not_exist_is_named(call: Call) -> None:
    assert call("run", "settings.yaml").error_line == "settings.yaml: cannot be read (No such file or directory)"


COMMANDS = {
    "an unknown command": ("rum", "No such command 'rum'"),
    "an unknown option": ("run --lam 1", "No such option", "--lam", "fedspecial run --help"),
    "resume of nothing": ("resume", "RUN_DIR"),
    "resume of a folder that does not exist": ("resume nowhere", "nowhere: this is not a run directory"),
    "evaluate of a folder that does not exist": ("evaluate nowhere", "nowhere: this is not a run directory"),
    "list of something else": ("list clients", "list 'clients'", "methods, benchmarks, models or settings"),
    "seeds that are not numbers": ("compare digits-shift --seeds 1,x", "seeds=1,x"),
    "a seed twice": ("compare digits-shift --seeds 1,1", "seeds=1,1"),
    "no jobs": ("compare digits-shift --jobs 0", "jobs=0"),
    "jobs that are not a number": ("compare digits-shift --jobs x", "'--jobs'", "'x'"),
    "a misspelt method": ("compare digits-shift --methods special,fedavgg", "method='fedavgg'", "'fedavg'"),
    "a method twice": ("compare digits-shift --methods fedavg,fedavg", "methods=fedavg,fedavg"),
    "a setting that no method has": ("compare digits-shift mu_prox=1", "mu_prox", "special, fedavg"),
    "a setting that is an option": ("compare digits-shift method=fedavg", "method=fedavg", "--methods"),
    "a seed that is an option": ("compare digits-shift seed=3", "seed=3", "--seeds"),
    "a bad value": ("compare digits-shift lam=-1", "lam=-1"),
    "data that is not read by compare": ("compare digits-shift --data .", "data=.", "built in and reads no files"),
    "data that is not read by tune": ("tune digits-shift --data .", "data=.", "built in and reads no files"),
    "data that the default benchmark does not read": ("run --data .", "data=.", "benchmark=folders"),
    "a misspelt option of the reader": ("run folders --data . label_colum=x out=new", "did you mean 'label_column'?"),
    "a misspelt benchmark": ("compare digitsshift", "'digitsshift'", "did you mean 'digits-shift'?"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_an_invalid_command_is_refused(call: Call, tmp_path: Path, case: str) -> None:
    line, *expected = COMMANDS[case]
    outcome = call(*line.split())
    for part in expected:
        assert part in outcome.error_line
    assert tree(tmp_path) == {}


def domain(name: str, labels: list[int], shape: tuple[int, ...] = (3, 8, 8), test: list[int] | None = None) -> Domain:
    def part(y: list[int]) -> Any:
        return np.zeros((len(y), *shape), np.uint8), np.array(y, dtype=np.int64)

    return Domain.of(name, part(labels), part(labels if test is None else test))


TWO = [0, 1] * 20
DATA = {
    "no domains": ([], "no domains"),
    "a domain without training samples": (
        [domain("a", TWO), domain("b", [], test=TWO)],
        "domain 'b' train: has no samples",
    ),
    "a domain without test samples": ([domain("a", TWO), domain("b", TWO, test=[])], "domain 'b' test: has no samples"),
    "a first domain that is empty": ([domain("a", [], test=TWO), domain("b", TWO)], "has no samples"),
    "label sets without a common class": ([domain("a", TWO), domain("b", [2] * 20)], "domain 'b': it shares no class"),
    "images of another size": ([domain("a", TWO), domain("b", TWO, (3, 9, 8))], "shape 3×9×8, expected 3×8×8"),
    "images of another colour": ([domain("a", TWO), domain("b", TWO, (1, 8, 8))], "shape 1×8×8, expected 3×8×8"),
    "a domain twice": ([domain("a", TWO), domain("a", TWO)], "'a' occurs twice"),
    "a negative label": ([domain("a", [-1, 1] * 10)], "label -1"),
}


@pytest.mark.parametrize("case", DATA)
def test_invalid_user_data_is_refused(tmp_path: Path, case: str) -> None:
    domains, message = DATA[case]
    source = Benchmark("own", tuple(domains), ("0", "1", "2")) if domains else domains
    with pytest.raises(InputError) as caught:
        fedspecial.run(source, model="mlp", out=tmp_path / "new")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert tree(tmp_path) == {}


def test_a_process_prints_one_line_and_no_traceback(tmp_path: Path) -> None:
    assert "did you mean 'lam'?" in fresh("run", "digits-shift", "lamb=1", f"out={tmp_path / 'new'}").error_line
    assert tree(tmp_path) == {}


@pytest.mark.parametrize(
    ("words", "hint"), [(("rn",), "Did you mean 'run'?"), (("data", "chek"), "Did you mean 'check'?")]
)
def test_the_hint_for_a_misspelt_command_is_given_once(words: tuple[str, ...], hint: str, call: Call) -> None:
    outcome = call(*words)
    assert outcome.code == 2
    assert outcome.stderr.count(hint) == 1
