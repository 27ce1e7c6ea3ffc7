"""The package imports without torch and matplotlib, and its simulator agrees with `Special.server_step`."""

import subprocess
import sys

import numpy as np
import pytest

from fedspecial.theory.simulation.simulator import apply_deltas

SCRIPT = """
import sys
sys.modules["torch"] = None
import fedspecial.theory as theory
import fedspecial.theory.estimators, fedspecial.theory.simulation.rate_studies, fedspecial.theory.plots
import fedspecial.theory.bound_table, fedspecial.theory.inputs
heavy = {"matplotlib", "scipy", "sklearn", "pydantic", "rich"} & set(sys.modules)
assert not heavy, heavy
assert all(hasattr(theory, name) for name in theory.__all__)
print(theory.half_life(1.0))
"""


def test_theory_imports_without_torch_and_other_heavy_packages():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1.0"


@pytest.mark.parametrize("lam", [0.0, 0.25, 3.0])
def test_the_simulator_and_special_compute_the_same_models_from_the_same_deltas(lam):
    torch = pytest.importorskip("torch")
    from fedspecial.core.messages import ServerState
    from fedspecial.methods.base import RoundInfo
    from fedspecial.methods.special import Special

    rng = np.random.default_rng(0)
    start = rng.standard_normal(1000).astype(np.float32)
    deltas = (0.1 * rng.standard_normal((30, 1000))).astype(np.float32)
    method, server = Special(lam=lam), ServerState(theta=torch.from_numpy(start.copy()))
    server.anchor = server.theta.clone()
    for t, (delta, expected) in enumerate(zip(deltas, apply_deltas(start, deltas, 0.5, lam), strict=True)):
        info = RoundInfo(task=2, round=t, server_lr=0.5, client_lr=0.1, mean_steps=4.0)
        method.server_step(server, {"theta": torch.from_numpy(delta)}, info)
        difference = np.linalg.norm(server.theta.numpy() - expected) / np.linalg.norm(expected)
        assert difference < 1e-6
