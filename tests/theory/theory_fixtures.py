"""Inputs of the golden values, and the ranges over which properties are tested."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from fedspecial.theory import Constants, RoundConfig

law = settings(max_examples=60, derandomize=True)

CFG = RoundConfig(
    num_clients=8, clients_per_round=4, local_steps=5, rounds=20, task_index=4,
    server_lr=0.25, client_lr=0.001, lam=0.25,
)  # fmt: skip
CONSTS = Constants(
    grad_bound=2.0, smoothness=4.0, sigma_local=1.0, sigma_client=1.0, sigma_task=1.5,
    alignment=0.5, old_grad_norm=0.3, gap=3.0,
)  # fmt: skip


def positive(low: float = 1e-3, high: float = 1e3) -> st.SearchStrategy[float]:
    return st.floats(low, high)


@st.composite
def configs(draw: st.DrawFn, min_task: int = 1, server_lr_rule: bool = False) -> RoundConfig:
    """Any valid settings; with ``server_lr_rule`` the server learning rate is at most 1/(K-1)."""
    clients = draw(st.integers(1, 40))
    task = draw(st.integers(min_task, 12))
    share = draw(st.floats(0.01, 1.0))
    return RoundConfig(
        num_clients=clients,
        clients_per_round=draw(st.integers(1, clients)),
        local_steps=draw(st.integers(1, 200)),
        rounds=draw(st.integers(1, 500)),
        task_index=task,
        server_lr=share / (task - 1) if server_lr_rule else draw(positive(1e-3, 10)),
        client_lr=draw(positive(1e-5, 1.0)),
        lam=draw(positive(1e-3, 10)),
    )


@st.composite
def constants(draw: st.DrawFn) -> Constants:
    small = st.floats(0, 100)
    return Constants(
        grad_bound=draw(positive()), smoothness=draw(positive()), sigma_local=draw(small), sigma_client=draw(small),
        sigma_task=draw(small), alignment=draw(st.floats(0.01, 1)), old_grad_norm=draw(positive(1e-3, 100)),
        gap=draw(small),
    )  # fmt: skip
