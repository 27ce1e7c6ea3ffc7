"""model=file.py:Class: a user's network, given by name like a method."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import Outcome

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("rendered"),
]
Call = Callable[..., Outcome]

FILE = """
import math
from torch import nn

class Net(nn.Module):
    def __init__(self, input_shape, num_classes, width=4):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), width), nn.ReLU())
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x):
        return self.fc(self.body(x))

def make(num_classes, input_shape):
    return Net(input_shape, num_classes, 5)

def anything(**given):
    return Net(**given)

def text(num_classes):
    return "a model"

def fails(num_classes):
    raise RuntimeError("out of ideas")

number = 3
"""
SETTINGS = (
    "domains=paper,neon cap=100 rounds=1 local_steps=2 clients=2 clients_per_round=2 min_per_client=2 eval_cap=20"
)


@pytest.fixture
def run(call: Call, tmp_path: Path) -> Call:
    (tmp_path / "net.py").write_text(FILE)
    return lambda *given: call("run", "digits-shift", *SETTINGS.split(), *given)


def sha256(folder: Path) -> str:
    return str(json.loads((folder / "result.json").read_text())["model_sha256"])


@pytest.mark.parametrize("spec", ["net.py:Net", "net.py:make", "net.py:anything"])
def test_a_class_or_function_of_a_file_is_the_model(run: Call, call: Call, tmp_path: Path, spec: str) -> None:
    assert run(f"model={spec}", "out=a").code == 0
    assert run(f"model={spec}", "out=b").code == 0
    assert sha256(tmp_path / "a") == sha256(tmp_path / "b"), "its first weights come from the seed"
    assert run(f"model={spec}", "seed=3", "out=c").code == 0
    assert sha256(tmp_path / "a") != sha256(tmp_path / "c")
    row = json.loads((tmp_path / "a" / "result.json").read_text())["matrix"][-1]
    assert re.findall(r"[\d.]+(?= %)", call("evaluate", "a").stdout) == [f"{100 * value:.2f}" for value in row]
    (tmp_path / "a" / "result.json").unlink()
    assert call("resume", "a").code == 0
    assert sha256(tmp_path / "a") == sha256(tmp_path / "b")


REFUSED = {
    "model=nowhere.py:Net": "model='nowhere.py:Net': cannot be imported",
    "model=net.py:Nett": "net.py (did you mean 'Net'?)",
    "model=net.py:number": "expected a class or function that returns a torch.nn.Module",
    "model=net.py:text": "it returned str, expected a torch.nn.Module",
    "model=net.py:fails": "calling it with num_classes failed (RuntimeError: out of ideas",
    "model=net.py:make width=3": "net.py:make' has no argument 'width'",
    "model=net.py:Net encoder=x": "encoder=x: only model 'transformer' has an encoder",
}


@pytest.mark.parametrize("given", REFUSED)
def test_a_model_that_cannot_be_used_is_refused_in_one_line(run: Call, tmp_path: Path, given: str) -> None:
    assert REFUSED[given] in run(*given.split(), "out=new").error_line
    assert not (tmp_path / "new").exists()
