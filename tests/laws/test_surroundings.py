"""A run does not depend on the program that calls it: torch's settings, other threads, an unprotected script."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from torch import nn

import fedspecial
from fedspecial import InputError
from toy_problems import QUICK, rotated_blobs

SETTINGS = {**QUICK, "method": "special", "lam": 0.2, "progress": False}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(5, 3))


DATA = rotated_blobs(tasks=2)


def train(folder: Path, seed: int = 25) -> str:
    return fedspecial.run(DATA, model=net, seed=seed, out=folder, **SETTINGS).model_sha256


SURROUNDINGS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("surrounding", SURROUNDINGS)
def test_the_model_does_not_depend_on_the_torch_context_of_the_caller(tmp_path: Path, surrounding: str) -> None:
    expected = train(tmp_path / "plain")
    with SURROUNDINGS[surrounding]():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        assert train(tmp_path / "inside") == expected
        after = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        assert after == before


def test_the_model_does_not_depend_on_the_default_type_of_torch(tmp_path: Path) -> None:
    expected = train(tmp_path / "plain")
    torch.set_default_dtype(torch.float64)
    try:
        assert train(tmp_path / "float64") == expected
        loaded = fedspecial.load(tmp_path / "plain", model=net).module
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert {weights.dtype for weights in loaded.parameters()} == {torch.float32}


def test_the_first_run_of_a_program_may_have_another_default_type(tmp_path: Path) -> None:
    code = (
        "import torch; torch.set_default_dtype(torch.float64)\n"
        "import fedspecial\n"
        "x, y = torch.randn(60, 4, dtype=torch.float32), torch.arange(60) % 2\n"
        "domains = [fedspecial.Domain.of('A', (x, y), (x, y))]\n"
        "fedspecial.run(domains, model='logistic', rounds=1, alpha=1.0, min_per_client=2, clients=4, out='run')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_runs_in_threads_have_the_models_of_their_seeds(tmp_path: Path) -> None:
    seeds = (1, 2, 3)
    expected = {seed: train(tmp_path / f"alone-{seed}", seed) for seed in seeds}
    found: dict[int, str] = {}

    def work(seed: int) -> None:
        found[seed] = train(tmp_path / f"thread-{seed}", seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_a_listener_may_start_another_run(tmp_path: Path) -> None:
    expected = train(tmp_path / "alone")
    inner: list[str] = []

    def listen(event: object) -> None:
        if type(event).__name__ == "TaskFinished":
            inner.append(train(tmp_path / f"inner-{len(inner)}", seed=7))

    outer = fedspecial.run(DATA, model=net, out=tmp_path / "outer", listeners=[listen], **SETTINGS)
    assert outer.model_sha256 == expected
    assert len(set(inner)) == 1


SCRIPT = """
import fedspecial, torch
x, y = torch.randn(60, 4), torch.arange(60) % 2
domains = [fedspecial.Domain.of("A", (x, y), (x, y))]
fedspecial.run(domains, model="logistic", rounds=1, alpha=1.0, min_per_client=2, clients=4, workers=2)
"""


def test_an_unprotected_script_makes_one_run_directory_and_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert 'put the call under `if __name__ == "__main__":`' in done.stderr.strip().splitlines()[-1]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["own-data-special-001"]


DATA_SETTINGS = {"domains": "A", "cap": 10, "holdout": 0.2, "image_size": 8, "data": "/data", "on_bad": "skip"}


@pytest.mark.parametrize("key", DATA_SETTINGS)
def test_settings_of_the_data_are_refused_where_the_data_is_an_object(tmp_path: Path, key: str) -> None:
    given = {key: DATA_SETTINGS[key]}
    with pytest.raises(InputError, match=f"{key}=.*the benchmark is a Python object, which is used as it is"):
        fedspecial.run(rotated_blobs(), model=net, out=tmp_path / "run", **{**SETTINGS, **given})
    with pytest.raises(InputError, match=f"{key}=.*the benchmark is a Python object"):
        fedspecial.compare(rotated_blobs(), ["fedavg"], [1], model=net, out=tmp_path / "all", **{**QUICK, **given})
    train(tmp_path / "finished")
    with pytest.raises(InputError, match=f"{key}=.*the benchmark is a Python object"):
        fedspecial.evaluate(tmp_path / "finished", rotated_blobs(), model=net, **given)


def test_tune_refuses_a_python_object_in_one_line() -> None:
    with pytest.raises(InputError, match=r"a Python object \(Benchmark\).*file\.py:function") as caught:
        fedspecial.tune(rotated_blobs())  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


def test_modules_without_weights_yet_and_scripted_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="model: the shape of 'weight' is not known yet"):
        fedspecial.run(rotated_blobs(), model=nn.LazyLinear(3), out=tmp_path / "lazy", **SETTINGS)
    scripted = torch.jit.script(nn.Linear(6, 3))
    with pytest.raises(InputError, match="model: a scripted module cannot be trained"):
        fedspecial.run(rotated_blobs(), model=lambda: scripted, out=tmp_path / "scripted", **SETTINGS)
