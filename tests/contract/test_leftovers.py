"""All clients of a process use one model in memory: what another client left in it must not change a result.

Otherwise a run would depend on the number of worker processes, and a site of a real federation on what it did before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedspecial import methods
from fedspecial.core.events import RoundFinished, TaskFinished
from fedspecial.core.vector import FlatModel
from fedspecial.engine.clients.client import ClientRunner
from method_problems import IMAGE_MODEL, problem_for
from toy_problems import images, learn


@pytest.mark.parametrize("policy", ["mean-only", "local"])
@pytest.mark.parametrize("name", methods.names())
def test_a_client_never_uses_what_is_left_in_the_model(
    name: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {**problem_for(name)[1], **IMAGE_MODEL, "batch_norm": policy, "rounds": 2}
    if name == "pfeddil":
        settings |= {"threshold": 0.9, "kappa": 0.1}
    expected, found = [], []  # with what the rounds and the tasks say about the clients, not only the global model
    result = learn(tmp_path / "run", name, images(tasks=2), **settings, listeners=[expected.append])
    load = ClientRunner._load

    def load_into_leftovers(runner: ClientRunner, *arguments: Any) -> None:
        for model in (runner.model, *runner.networks.values()):
            assert isinstance(model, FlatModel)
            model.vector.fill_(0.5)
        load(runner, *arguments)

    monkeypatch.setattr(ClientRunner, "_load", load_into_leftovers)
    again = learn(tmp_path / "again", name, images(tasks=2), **settings, listeners=[found.append])
    assert again.model_sha256 == result.model_sha256
    assert _measured(found) == _measured(expected)


def _measured(events: list[Any]) -> list[Any]:
    rounds = [(event.loss, event.accuracy, event.metrics) for event in events if isinstance(event, RoundFinished)]
    return [*rounds, *(event.accuracy for event in events if isinstance(event, TaskFinished))]
