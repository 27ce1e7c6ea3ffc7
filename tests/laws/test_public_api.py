"""`import fedspecial` offers everything that a user needs, without importing torch before it is used."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from torch import nn

import fedspecial
from fedspecial import InputError, methods
from toy_problems import QUICK, images, learn, rotated_blobs


def test_every_public_name_can_be_imported_and_completed() -> None:
    assert set(fedspecial.__all__) <= set(dir(fedspecial))
    for name in fedspecial.__all__:
        value = getattr(fedspecial, name)
        assert not isinstance(value, type) or value.__doc__, name


def test_every_public_function_and_property_of_a_class_is_documented() -> None:
    for name in fedspecial.__all__:
        kind = getattr(fedspecial, name)
        for key in vars(kind) if inspect.isclass(kind) else ():
            value, is_field = getattr(kind, key), key in getattr(kind, "__dataclass_fields__", ())
            if not key.startswith("_") and not is_field and (inspect.isfunction(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{key}"


def test_every_method_class_is_public() -> None:
    for name in methods.names():
        kind = methods.find(name)
        assert getattr(fedspecial, kind.__name__) is kind


@pytest.mark.parametrize("name", ["run", "resume", "compare", "tune", "evaluate", "load"])
def test_every_function_is_documented_with_an_example(name: str) -> None:
    text = getattr(fedspecial, name).__doc__
    for part in ("Args:", "Returns:", "Examples:", f"fedspecial.{name}("):
        assert part in text


def test_completion_of_names_does_not_import_torch() -> None:
    code = (
        "import sys, fedspecial; dir(fedspecial); fedspecial.run; fedspecial.resume; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_objects_are_recorded_as_objects_and_must_be_passed_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(rotated_blobs().input_shape), 3))
    result = learn(folder, fedspecial.Special(lam=0.3), model=model)
    recorded = yaml.safe_load((folder / "config.yaml").read_text())
    assert recorded["benchmark"] == {"object": rotated_blobs().name}
    assert recorded["model"] == {"object": "Sequential"}
    assert (recorded["method"], recorded["lam"]) == ("special", 0.3)
    (folder / "result.json").unlink()
    with pytest.raises(InputError, match=r"benchmark=.*pass it again from Python: fedspecial\.resume\(.*benchmark=…\)"):
        fedspecial.resume(folder)
    with pytest.raises(InputError, match=r"model=Sequential: .*fedspecial\.resume\(.*model=…\)"):
        fedspecial.resume(folder, benchmark=rotated_blobs())
    with pytest.raises(InputError, match=r"fedspecial\.evaluate\(.*model=…\)"):
        fedspecial.evaluate(folder, rotated_blobs())
    again = fedspecial.resume(folder, benchmark=rotated_blobs(), model=model)
    assert again.model_sha256 == result.model_sha256
    tested = fedspecial.evaluate(folder, rotated_blobs(), model=model)
    assert list(tested.values()) == pytest.approx(result.matrix[-1])


def test_a_settings_file_cannot_name_an_object(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("model: {object: Net}\n")
    with pytest.raises(InputError, match=r"model=Net: this run was started with a Python object"):
        fedspecial.run(config=tmp_path / "mine.yaml", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_compare_runs_methods_on_objects_and_reuses_finished_runs(tmp_path: Path) -> None:
    settings = {**QUICK, "model": "mlp", "width": 8, "out": tmp_path / "c"}
    chosen = [fedspecial.Special(lam=0.2), "fedavg"]
    first = fedspecial.compare(rotated_blobs(), chosen, seeds=[1, 2], **settings)
    assert {name: len(results) for name, results in first.results.items()} == {"special": 2, "fedavg": 2}
    assert first.results["special"][0].lam == pytest.approx(0.2)
    assert "special" in str(first)
    assert (tmp_path / "c" / "comparison.md").read_text() == str(first)
    again = fedspecial.compare(rotated_blobs(), chosen, seeds=[1, 2], **settings)
    assert again.results == first.results
    alone = learn(tmp_path / "alone", "special", lam=0.2, seed=1)
    assert alone.model_sha256 == first.results["special"][0].model_sha256


def test_every_run_of_a_comparison_gets_its_own_copy_of_the_model(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(images().input_shape), len(images().classes)))
    before = model[1].weight.detach().clone()
    fedspecial.compare(images(), ["fedavg"], seeds=[1], model=model, out=tmp_path / "c", **QUICK)
    assert model[1].weight.equal(before)


@pytest.mark.usefixtures("rendered")
def test_tune_returns_lambda_curve_and_a_settings_file(tmp_path: Path) -> None:
    quick = {"domains": "paper,neon", "cap": 100, "model": "logistic", "rounds": 1, "local_steps": 1, "clients": 2,
             "clients_per_round": 2, "min_per_client": 2, "eval_every": 0}  # fmt: skip

    def run_here(stage: str, jobs: list) -> None:
        from fedspecial.runs.jobs import run_in_process
        from fedspecial.runs.objects import Objects

        assert stage in ("coarse", "fine")
        run_in_process(jobs, Objects(), lambda: None)

    tuned = fedspecial.tune("digits-shift", seeds=[25], out=tmp_path / "t", run_jobs=run_here, **quick)
    assert len(tuned.curve) == 9
    assert tuned.lam in tuned.curve
    assert yaml.safe_load(tuned.preset.read_text())["lam"] == tuned.lam
    with pytest.raises(InputError, match="only special and special-c"):
        fedspecial.tune("digits-shift", method="fedavg")


def test_a_setting_beside_a_method_object_that_has_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"lam=0\.3: the method was given as an object, which has lam=0\.1"):
        learn(tmp_path / "run", fedspecial.Special(lam=0.1), lam=0.3)
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match=r"lam=0\.3: the method was given as an object, which has lam=0\.1"):
        fedspecial.compare(rotated_blobs(), [fedspecial.Special(lam=0.1), "special-c"], lam=0.3, out=tmp_path / "c")


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (fedspecial.Special(lam=0.9), r"lam=0\.9: .*, and it was started with lam=0\.3"),
        (fedspecial.Special(mu=1.0), r"lam=None: .*, and it was started with lam=0\.3"),
        (fedspecial.FedAvg(), r"method=fedavg: .*, and it was started with method=special"),
    ],
)
def test_a_run_is_neither_resumed_nor_evaluated_with_another_method(
    method: fedspecial.Method, message: str, tmp_path: Path
) -> None:
    result = learn(tmp_path / "run", fedspecial.Special(lam=0.3))
    with pytest.raises(InputError, match=message):
        fedspecial.evaluate(tmp_path / "run", rotated_blobs(), method=method)
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(InputError, match=message):
        fedspecial.resume(tmp_path / "run", benchmark=rotated_blobs(), method=method)
    again = fedspecial.resume(tmp_path / "run", benchmark=rotated_blobs(), method=fedspecial.Special(lam=0.3))
    assert again.model_sha256 == result.model_sha256
