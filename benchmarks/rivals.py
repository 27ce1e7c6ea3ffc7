"""A tiny FedAvg round against a bare PyTorch loop, pfl-research and Flower's simulation.

Logistic regression 784→10, 60 rows per client, batches of 10, one epoch, plain SGD; 4 of 8 and 10 of 1,000 clients per
round. Targets: at most 0.45 of pfl's time, and at least 30 times as fast as Flower's simulation.

pfl and Flower have an environment of their own, which is made on first use (`--env`), and run in their own processes;
`rival_adapters/` contains what connects them. Every process has one thread. Flower may train one client on each core.
All are measured alternately; Flower only in every third repeat, because its rounds are long. It spends most of a round
waiting for its polls (every 0.1 s), so other work on the machine slows us down more than Flower.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from problems import features, ready_run, round_with_checkpoint
from rival_adapters.processes import RIVALS, Adapter, Rival, RivalError, Seconds, install
from rival_adapters.protocol import Problem
from timing import Quartiles, arguments, ratio, set_threads, show, verdict
from tiny_round import BareLoop

OURS, BARE = "fedspecial", "bare loop"
OF_PFL, OF_FLOWER = 0.45, 30.0
FLOWER_EVERY = 3


@dataclass
class Contender:
    """One side of the comparison. run: number of rounds → seconds. times: repeat → seconds per round."""

    label: str
    run: Callable[[int], Seconds]
    rounds: int
    every: int = 1
    times: dict[int, Seconds] = field(default_factory=dict)

    def measure(self, repeat: int) -> None:
        seconds = self.run(self.rounds)
        self.times[repeat] = Seconds(seconds.wall / self.rounds, seconds.cpu / self.rounds)


def timed(round: Callable[[], object]) -> Callable[[int], Seconds]:
    """The same interface as an adapter's, for a round in this process."""

    def run(rounds: int) -> Seconds:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(rounds):
            round()
        return Seconds(time.perf_counter() - wall, time.process_time() - cpu)

    return run


@contextlib.contextmanager
def in_process(problem: Problem, folder: Path, rounds: int) -> Iterator[list[Contender]]:
    """Our run and the bare loop."""
    data = features(problem.clients * problem.rows, problem.features)
    bare = BareLoop(data.domains[0].train, problem.clients, problem.per_round)
    settings = {"method": "fedavg", "model": "logistic", "local_epochs": 1, "batch_size": problem.batch}
    settings |= {"client_lr": problem.lr, "client_lr_decay": 1.0, "threads": problem.threads}
    settings |= {"clients": problem.clients, "clients_per_round": problem.per_round}
    run = ready_run(folder / "run", data, share=problem.rows, **settings)
    counter = itertools.count()
    ours = timed(lambda: round_with_checkpoint(run, 1, next(counter)))
    yield [Contender(OURS, ours, rounds), Contender(BARE, timed(bare.round), rounds)]
    run.log.close()


def start(rival: Rival, python: Path, problem: Problem, folder: Path, stack: contextlib.ExitStack) -> Adapter:
    adapter = Adapter(rival, python, problem, folder)
    stack.callback(adapter.close)
    adapter.run(1)
    return adapter


def compare(problem: Problem, pythons: dict[str, Path], rounds: int, repeats: int) -> list[Contender]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        contenders = stack.enter_context(in_process(problem, folder, rounds))
        for name, python in pythons.items():
            label = RIVALS[name].label
            try:
                adapter = start(RIVALS[name], python, problem, folder, stack)
            except RivalError as error:
                print(f"  {label}: left out, {error}")
                continue
            contenders.append(Contender(label, adapter.run, rounds, every=FLOWER_EVERY if name == "flower" else 1))
        for contender in contenders:
            contender.run(2 * contender.rounds)
        for repeat in range(repeats):
            for contender in contenders if repeat % 2 == 0 else reversed(contenders):
                if repeat % contender.every == 0:
                    contender.measure(repeat)
    return contenders


def report(problem: Problem, contenders: Sequence[Contender]) -> None:
    title = f"{problem.per_round} of {problem.clients} clients, {problem.steps} steps: milliseconds per round"
    show(title, [(c.label, Quartiles.of([1000 * t.wall for t in c.times.values()])) for c in contenders])
    ours, by_label = contenders[0].times, {c.label: c.times for c in contenders}
    pfl, flower = RIVALS["pfl"].label, RIVALS["flower"].label

    def against(label: str, clock: Callable[[Seconds], float]) -> Quartiles:
        theirs = by_label[label]
        return ratio([clock(ours[repeat]) for repeat in theirs], [clock(seconds) for seconds in theirs.values()])

    rows = []
    for label in by_label:
        if label != OURS:
            rows.append((f"{label}, wall", against(label, lambda seconds: seconds.wall)))
        # Flower's work is spread over the processes of Ray, so the processor time of one of them says nothing.
        if label not in (OURS, flower):
            rows.append((f"{label}, processor", against(label, lambda seconds: seconds.cpu)))
    show("fedspecial : other implementation", rows)
    found = dict(rows)
    if pfl in by_label:
        verdict("wall, of pfl-research's time,", found[f"{pfl}, wall"], OF_PFL)
    if flower in by_label:
        theirs = by_label[flower]
        faster = ratio([seconds.wall for seconds in theirs.values()], [ours[repeat].wall for repeat in theirs])
        verdict("wall, times as fast as Flower's simulation,", faster, OF_FLOWER, at_least=True)


def options(parser: argparse.ArgumentParser) -> None:
    default = Path(__file__).parents[1] / ".venv-rivals"
    parser.add_argument("--env", type=Path, default=default, help="environment of the rivals (default: .venv-rivals)")
    parser.add_argument("--rivals", nargs="*", choices=list(RIVALS), default=list(RIVALS), help="default: all")


def main() -> None:
    args = arguments(__doc__, options)
    set_threads(args.threads)
    rounds, repeats = (1, 6) if args.quick else (5, 90)
    pythons = {}
    for name in args.rivals:
        try:
            pythons[name] = install(RIVALS[name], args.env.absolute())
        except RivalError as error:
            print(f"  {RIVALS[name].label}: left out, it cannot be installed: {error}")
    for clients, per_round in ((8, 4), (1000, 10)):
        problem = Problem(clients, per_round, threads=args.threads)
        report(problem, compare(problem, pythons, rounds, args.repeats or repeats))


if __name__ == "__main__":
    main()
