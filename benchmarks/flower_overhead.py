"""Time of a round over Flower: our engine compared with one process and with Flower's own FedAvg on the same Grid.

Four sites on an in-process Grid, without sockets. Our round is the complete round of a deployment, in which replies are
checked and hashed; only the checkpoint is left out, since Flower's FedAvg has none. The comparison is Flower's FedAvg
strategy with a ClientApp that takes the same steps on the same model class. Target: ours costs no more than Flower's.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from problems import EqualShares, features, images, ready_run
from timing import Quartiles, arguments, interleave, ratio, set_threads, show, verdict
from torch.nn.functional import cross_entropy

from fedspecial.config import given_object
from fedspecial.data.benchmark import Benchmark
from fedspecial.data.federation import Federation
from fedspecial.engine.clients.payloads import PayloadTracker
from fedspecial.engine.round import run_round
from fedspecial.engine.run import Run
from fedspecial.flower import InProcessGrid
from fedspecial.flower.app import site as sites
from fedspecial.flower.app.client_app import make_client_app
from fedspecial.flower.app.engine import FlowerEngine
from fedspecial.flower.app.plan import FederationPlan
from fedspecial.models import build

NAMES = ("north", "south", "west", "east")
LR = 0.001
TARGET = 1.0


@dataclass(frozen=True)
class Problem:
    name: str
    data: Benchmark
    model: str
    width: int | None
    rows: int
    batch: int
    steps: int

    def settings(self, threads: int) -> dict[str, Any]:
        settings = {"method": "fedavg", "model": self.model, "batch_size": self.batch, "local_steps": self.steps}
        settings |= {"client_lr": LR, "client_lr_decay": 1.0, "threads": threads}
        return settings | ({"width": self.width} if self.width else {})


def problems(quick: bool) -> list[Problem]:
    width, steps = (16, 1) if quick else (64, 4)
    return [
        Problem("logistic regression, 7,850 weights", features(240), "logistic", None, 60, 10, 6),
        Problem(f"ResNet-18, width {width}", images(320), "resnet18", width, 80, 32, steps),
    ]


def over_flower(run: Run, problem: Problem, settings: dict[str, Any], folder: Path) -> Run:
    """The same run with our Flower engine; the data of the sites is in memory."""
    plan = FederationPlan(NAMES, {"benchmark": given_object(problem.data.name), **settings})
    shares = EqualShares(problem.rows, len(problem.data.domains[0].train))
    federation = Federation(problem.data, len(NAMES), lambda task, domain: shares)
    sites.site_federation = lambda *arguments: federation
    grid = InProcessGrid(make_client_app(), [{"site": name, "state": str(folder / name)} for name in NAMES])
    engine = FlowerEngine(grid, plan, "benchmark", run.engine.runner, PayloadTracker())
    engine.registry.wait(range(len(NAMES)), len(NAMES), 60)
    run.engine, run.quorum = engine, lambda: engine.quorum_size
    return run


def plain_fedavg(problem: Problem) -> Callable[[], object]:
    """A round of Flower's FedAvg; each site loads the received weights into its model."""
    samples, shares = problem.data.domains[0].train, EqualShares(problem.rows, len(problem.data.domains[0].train))
    shape = {"input_shape": problem.data.input_shape, "num_classes": 10, "width": problem.width}
    model = build(problem.model, **shape).train()
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        rows = torch.from_numpy(shares.rows(int(context.node_config["number"])))
        rows = rows[torch.randperm(len(rows))]
        total, parameters = 0.0, list(model.parameters())
        for step in range(problem.steps):
            batch = rows[torch.arange(step * problem.batch, (step + 1) * problem.batch) % len(rows)]
            loss = cross_entropy(model(problem.data.inputs(samples.x[batch])), samples.y[batch])
            loss.backward()
            total += float(loss.detach())
            with torch.no_grad():
                for parameter in parameters:
                    parameter.add_(parameter.grad, alpha=-LR)
                    parameter.grad = None
        metrics = MetricRecord({"num-examples": len(rows), "loss": total / problem.steps})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    grid = InProcessGrid(app, [{"number": number} for number in range(len(NAMES))])
    strategy = FedAvg(min_train_nodes=len(NAMES), min_available_nodes=len(NAMES), fraction_evaluate=0.0)
    current = [ArrayRecord(model.state_dict())]

    def round() -> None:
        """One round as in `Strategy.start`, without its log output."""
        requests = strategy.configure_train(1, current[0], ConfigRecord(), grid)
        arrays, _ = strategy.aggregate_train(1, grid.send_and_receive(requests))
        assert arrays is not None
        current[0] = arrays

    return round


def rounds_of(run: Run) -> Callable[[], object]:
    numbers = itertools.count()
    return lambda: run_round(run, 1, next(numbers))


def main() -> None:
    args = arguments(__doc__)
    set_threads(args.threads)
    for problem, repeats in zip(problems(args.quick), (20, 3) if args.quick else (100, 8), strict=True):
        settings = problem.settings(args.threads)
        every = {**settings, "clients": len(NAMES), "clients_per_round": len(NAMES)}
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            alone = ready_run(root / "alone", problem.data, problem.rows, **every)
            ours = ready_run(root / "flower", problem.data, problem.rows, **every)
            ours = over_flower(ours, problem, settings, root / "sites")
            works = {
                "one process": rounds_of(alone),
                "our engine on the Grid": rounds_of(ours),
                "Flower's FedAvg on the Grid": plain_fedavg(problem),
            }
            times = interleave(works, args.repeats or repeats, warm_up=2)
            alone.log.close()
            ours.log.close()
        show(
            f"{problem.name}: milliseconds per round of {len(NAMES)} sites, {problem.steps} steps each",
            [(name, Quartiles.of([1000 * t for t in taken.wall])) for name, taken in times.items()],
        )
        one, ours_taken, theirs = times.values()
        rows = [(f"{label}, wall", ratio(ours_taken.wall, other.wall)) for label, other in _rivals(one, theirs)]
        rows += [(f"{label}, processor", ratio(ours_taken.cpu, other.cpu)) for label, other in _rivals(one, theirs)]
        show("our engine on the Grid", rows)
        verdict("to Flower's FedAvg, wall,", rows[1][1], TARGET)
        verdict("to Flower's FedAvg, processor,", rows[3][1], TARGET)


def _rivals(one: Any, theirs: Any) -> list[tuple[str, Any]]:
    return [("to one process", one), ("to Flower's FedAvg", theirs)]


if __name__ == "__main__":
    main()
