"""Sweeps on problems with known constants, which compare measured slopes with those the theory supports.

lam      drift falls like 1/lam; forgetting falls, the loss on the new task rises, and their sum has a minimum
rounds   with mu fixed and gE ~ sqrt(N/T), the mean of ‖grad Phi‖^2 falls like T^-1/2 (Theorem S)
clients  the stationary variance falls like 1/N (noise) and like (M-N)/(N(M-1)) (heterogeneity)
epochs   the bound on the drift grows like E, and mu falls like 1/E (E: local steps)
rate     with the learning rates of Corollary 1, min ‖grad f_{1:K}‖^2 does not fall with T: slope 0, not -1/2
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedspecial.theory import validation
from fedspecial.theory.arrays import Vector
from fedspecial.theory.bounds.convergence import lam_for_mu, quadratic_stationary, surrogate, surrogate_bound
from fedspecial.theory.bounds.drift import drift_radius
from fedspecial.theory.bounds.paper_statements import paper_rate_steps
from fedspecial.theory.conditions import check_conditions
from fedspecial.theory.constants import RoundConfig
from fedspecial.theory.simulation.curves import Curve, RateStudy, make_curve
from fedspecial.theory.simulation.problems import Problem, RadialFDIL, make_problem
from fedspecial.theory.simulation.simulator import minimise, simulate

Progress = Callable[[int, int], None]
DIM, CLIENTS = 10, 8


def rate_study(
    sweep: str,
    values: Sequence[float] | None = None,
    *,
    problem: str = "pseudo_huber",
    repeats: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> RateStudy:
    """Run the sweep "lam", "rounds", "clients", "epochs" or "rate".

    ``problem``: "pseudo_huber", "welsch" or "logistic"; the sweep over clients uses quadratics, whose
    stationary distribution is known in closed form. ``repeats`` is the number of replicates. ``progress`` is
    called with (done, total).
    """
    if sweep not in _SWEEPS:
        raise ValueError(f"sweep must be one of {', '.join(SWEEPS)}, got {sweep!r}")
    run, defaults, replicates = _SWEEPS[sweep]
    chosen = tuple(defaults if values is None else values)
    if len(chosen) < 3:
        raise ValueError(f"values must have at least 3 points to fit a slope, got {chosen!r}")
    integral = sweep != "lam"
    points = [validation.count("values", int(v)) if integral else validation.positive("values", v) for v in chosen]
    count = validation.count("repeats", replicates if repeats is None else repeats, low=2)
    if sweep != "clients" and problem == "quadratic":
        raise ValueError(f"problem must have bounded gradients for the sweep {sweep!r}, got {problem!r}")
    return run(points, _Setup(problem, count, seed, progress or (lambda done, total: None)))


@dataclass(frozen=True)
class _Setup:
    """What all sweeps have in common."""

    problem: str
    repeats: int
    seed: int
    progress: Progress

    def make(self, **options: Any) -> tuple[Problem, Vector]:
        """The problem, and the anchor: the end of a long noise-free training on task 1."""
        if self.problem == "welsch":  # its gradient vanishes far out: keep near its peak, and the noise below it
            options |= {"shift": 0.8, "spread": 0.2, "noise": 0.1}
        problem = make_problem(self.problem, num_clients=CLIENTS, dim=DIM, seed=self.seed, **options)
        return problem, minimise(problem, [1], np.zeros(DIM))

    def record(self) -> dict[str, Any]:
        return {"repeats": self.repeats, "seed": self.seed, "dim": DIM}


def _lam(values: Sequence[float], setup: _Setup) -> RateStudy:
    problem, anchor = setup.make(shift=3.0)
    bound, rows = problem.constants().grad_bound, []
    base = RoundConfig(CLIENTS, 4, 5, 300, 2, server_lr=0.5, client_lr=0.05, lam=1.0)
    before = float(problem.task_loss(1, anchor))
    for index, lam in enumerate(values):
        cfg = replace(base, lam=lam)
        trace = simulate(problem, cfg, anchor=anchor, replicates=setup.repeats, seed=setup.seed + index)
        change = problem.task_loss(1, trace.theta) - before
        fresh = problem.task_loss(2, trace.theta)
        cap = drift_radius(cfg, bound, cfg.rounds)
        rows.append((trace.drift[-1], cap, change, fresh, change + fresh))
        setup.progress(index + 1, len(values))
    drift, caps, lost, new, both = zip(*rows, strict=True)
    curves = (
        make_curve("drift", values, drift, theory=-1.0, fit_from=0.3),
        make_curve("drift cap", values, caps),
        make_curve("forgetting", values, lost),
        make_curve("new-task loss", values, new),
        make_curve("forgetting + new-task loss", values, both),
    )
    note = "drift falls like 1/lam for lam >= 0.3; forgetting falls with lam, the loss on the new task rises"
    return _study("lam", setup, "lam", "value after 300 rounds", curves, note, base)


def _rounds(values: Sequence[float], setup: _Setup) -> RateStudy:
    problem, anchor = setup.make(shift=2.0, noise=1.0)
    consts = replace(problem.constants(), gap=float(problem.task_loss(2, anchor)))
    base = RoundConfig(CLIENTS, 4, 5, 1, 2, server_lr=1.0, client_lr=1.0, lam=0.1)
    mu, rows = 0.5, []
    for index, value in enumerate(values):
        rounds = int(value)
        pseudo = 0.5 * math.sqrt(base.clients_per_round / rounds)  # gE = c sqrt(N / T)
        client = 1 / (base.local_steps * consts.smoothness * math.sqrt(rounds))
        frozen = replace(base, rounds=rounds, client_lr=client, server_lr=pseudo / (client * base.local_steps))
        fixed = replace(frozen, lam=lam_for_mu(mu, frozen))

        def stationarity(theta: Vector) -> Vector:
            return np.asarray(((problem.task_gradient(2, theta) + mu * (theta - anchor)) ** 2).sum(axis=-1))

        options = {"anchor": anchor, "replicates": setup.repeats, "seed": setup.seed + index}
        run = simulate(problem, fixed, measure=stationarity, **options)  # type: ignore[arg-type]
        other = simulate(problem, frozen, **options)  # type: ignore[arg-type]
        theorem = surrogate_bound(fixed, consts).total
        rows.append((run.measured[:-1].mean(axis=0), theorem, run.drift[-1], other.drift[-1]))
        setup.progress(index + 1, len(values))
    measured, bound, drift_mu, drift_lam = zip(*rows, strict=True)
    curves = (
        make_curve("mean ‖grad Phi‖^2, mu fixed", values, measured, theory=-0.5),
        make_curve("Theorem S", values, bound),
        make_curve("drift, mu fixed", values, drift_mu, theory=0.0),
        make_curve("drift, lam fixed", values, drift_lam, theory=-0.5),
    )
    note = "lam must scale with gE: at fixed lam, smaller learning rates keep the model at the anchor"
    return _study("rounds", setup, "rounds T", "value", curves, note, base)


def _clients(values: Sequence[float], setup: _Setup) -> RateStudy:
    rng = np.random.default_rng(setup.seed)
    num_clients = 16
    spread = rng.standard_normal((1, num_clients, DIM))
    problems = {
        "noise only": RadialFDIL(np.zeros_like(spread), "quadratic", noise=1.0),
        "heterogeneity only": RadialFDIL(spread, "quadratic"),
    }
    base = RoundConfig(num_clients, 1, 5, 40, 1, server_lr=0.5, client_lr=0.1, lam=0.25)
    curves = []
    for number, (name, problem) in enumerate(problems.items()):
        # If all clients take part, heterogeneity causes no variance, and a log scale cannot show zero.
        counts = [int(v) for v in values if problem.noise > 0 or v < num_clients]
        measured, exact = [], []
        for index, clients in enumerate(counts):
            cfg = replace(base, clients_per_round=clients)
            anchor = np.zeros(DIM)
            mean, variance = quadratic_stationary(cfg, problem.centers[0], anchor, problem.noise)
            run = simulate(problem, cfg, anchor=anchor, replicates=setup.repeats, seed=setup.seed + index)
            measured.append(((run.theta - mean) ** 2).sum(axis=-1))
            exact.append(variance)
            setup.progress(number * len(values) + index + 1, 2 * len(values))
        slope = -1.0 if problem.noise > 0 else None
        curves.append(replace(make_curve(name, counts, measured, theory=slope), exact=tuple(exact)))
    setup.progress(2 * len(values), 2 * len(values))
    note = "total variance of theta around the stationary mean, compared with the closed form"
    quadratic = replace(setup, problem="quadratic")
    return _study("clients", quadratic, "clients per round N", "stationary variance", tuple(curves), note, base)


def _epochs(values: Sequence[float], setup: _Setup) -> RateStudy:
    problem, anchor = setup.make(shift=30.0)
    bound, rows = problem.constants().grad_bound, []
    base = RoundConfig(CLIENTS, 4, 1, 100, 2, server_lr=0.5, client_lr=0.01, lam=0.25)
    for index, value in enumerate(values):
        cfg = replace(base, local_steps=int(value))
        run = simulate(problem, cfg, anchor=anchor, replicates=setup.repeats, seed=setup.seed + index)
        rows.append((drift_radius(cfg, bound), run.drift[-1], surrogate(cfg).mu))
        setup.progress(index + 1, len(values))
    cap, drift, mu = zip(*rows, strict=True)
    curves = (
        make_curve("drift cap", values, cap, theory=1.0),
        make_curve("drift", values, drift, theory=1.0),
        make_curve("mu", values, mu, theory=-1.0),
    )
    note = "at fixed lam, more local steps mean a larger drift radius and a smaller mu"
    return _study("epochs", setup, "local steps E", "value", curves, note, base)


def _rate(values: Sequence[float], setup: _Setup) -> RateStudy:
    tasks = 3
    problem, anchor = setup.make(num_tasks=tasks, shift=3.0, noise=0.1, smoothness=20.0)
    consts = problem.constants()
    steps, clients = 2, 4
    lam = 1.25 * math.sqrt(clients * steps) / consts.smoothness  # so that gamma_G <= 1/(K-1)
    base = RoundConfig(CLIENTS, clients, steps, 1, tasks, server_lr=1.0, client_lr=1.0, lam=lam)

    def joint(theta: Vector) -> Vector:
        total = sum(problem.task_gradient(task, theta) for task in range(1, tasks + 1))
        return np.asarray((np.asarray(total) ** 2).sum(axis=-1))

    rows, met = [], True
    for index, value in enumerate(values):
        cfg = replace(base, rounds=int(value))
        server, client = paper_rate_steps(cfg, consts.smoothness)
        cfg = replace(cfg, server_lr=server, client_lr=client)
        met = met and check_conditions(cfg, consts, "paper_convergence").ok is True
        run = simulate(problem, cfg, anchor=anchor, replicates=setup.repeats, seed=setup.seed + index, measure=joint)
        rows.append((run.measured.min(axis=0), drift_radius(cfg, consts.grad_bound), run.measured[0]))
        setup.progress(index + 1, len(values))
    lowest, radius, start = zip(*rows, strict=True)
    curves = (
        make_curve("min ‖grad f_1:K‖^2", values, lowest, theory=0.0),
        make_curve("at the anchor", values, start),
        make_curve("drift radius", values, radius, theory=-0.5),
    )
    note = "Corollary 1 claims slope -1/2; instead the drift radius shrinks and the model stays at the anchor"
    study = _study("rate", setup, "rounds T", "value", curves, note, base)
    return replace(study, settings={**study.settings, "conditions_of_theorem_2_met": met})


def _study(
    sweep: str, setup: _Setup, x: str, y: str, curves: tuple[Curve, ...], note: str, base: RoundConfig
) -> RateStudy:
    return RateStudy(sweep, setup.problem, x, y, curves, note, {**setup.record(), "base": asdict(base)})


_SWEEPS: dict[str, tuple[Callable[[Sequence[float], _Setup], RateStudy], tuple[float, ...], int]] = {
    "lam": (_lam, (0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.6, 1.0, 2.0, 4.0, 10.0), 32),
    "rounds": (_rounds, (16, 32, 64, 128, 256, 512, 1024, 2048, 4096), 16),
    "clients": (_clients, (1, 2, 4, 8, 12, 16), 2000),
    "epochs": (_epochs, (1, 2, 4, 8, 16, 32, 64), 32),
    "rate": (_rate, (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384), 8),
}
SWEEPS: tuple[str, ...] = tuple(_SWEEPS)
