"""Cost of SPECIAL's server step. Targets: at most 1 % of a ResNet-18 round, at most 2 times a copy of three vectors.
For comparison, the whole server half of SPECIAL+: the spread of two updates, the step and the pull (no target).

The server step reads θ, the mean delta and the anchor, and writes θ. The copy reads and writes three vectors of the
same length. The round has 4 clients × 20 bare steps; its time is extrapolated from single steps measured in between.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import torch
from problems import images
from resnet_round import CHOSEN, BareSteps
from timing import Quartiles, arguments, interleave, ratio, set_threads, show, verdict

from fedspecial.core.messages import ServerState, Update
from fedspecial.core.vector import layout_of
from fedspecial.methods.base import RoundInfo
from fedspecial.methods.special import Special
from fedspecial.methods.special_plus import SpecialPlus

STEPS = 20


def plus_half(size: int) -> Callable[[], None]:
    """What the server does in a round of SPECIAL+ with two updates, in a second task."""
    method, server = SpecialPlus(), ServerState(torch.randn(size))
    deltas = [1e-3 * torch.randn(size) for _ in range(2)]
    mean = {"theta": sum(deltas[1:], deltas[0]) / 2}

    def work(task: int = 2) -> None:
        context = cast(
            "Any", SimpleNamespace(task=task, model=SimpleNamespace(layout=SimpleNamespace(num_weights=size)))
        )
        for client, delta in enumerate(deltas):
            method.receive(server, Update(client, {"theta": delta}, STEPS, 1, 0.0))
        method.server_step(server, mean, RoundInfo(task, 0, 1.0, 0.001, float(STEPS), context=context))
        if task == 1:
            context.task = 2
            method.begin_task(server, context)

    work(1)
    return work


def main() -> None:
    args = arguments(__doc__)
    set_threads(args.threads)
    width, repeats = (16, 4) if args.quick else (64, 15)
    repeats = args.repeats or repeats
    bare = BareSteps(images(1280), 1, width)
    size = layout_of(bare.model).size
    server = ServerState(torch.randn(size), torch.randn(size))
    mean = {"theta": 1e-3 * torch.randn(size)}
    sources = [server.theta.clone(), mean["theta"].clone(), server.anchor.clone()]
    targets = [torch.empty(size) for _ in sources]
    method, info = Special(lam=0.1), RoundInfo(2, 0, 0.5, 0.001, float(STEPS))

    def copy() -> None:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)

    works = {"step": lambda: method.server_step(server, mean, info), "copy": copy, "four bare steps": bare.round}
    works["special-plus, two updates"] = plus_half(size)
    times = interleave(works, repeats, warm_up=2)
    show(
        f"milliseconds of processor time, {size:,} values a vector",
        [(name, Quartiles.of([1000 * t for t in times[name].cpu])) for name in times],
    )
    per_round = [
        t * STEPS for t in times["four bare steps"].wall
    ]  # the measurement is one step for each of CHOSEN clients
    share = Quartiles.of([100 * step / total for step, total in zip(times["step"].wall, per_round, strict=True)])
    copies = ratio(times["step"].wall, times["copy"].wall)
    show(
        "server step",
        [(f"per cent of a round of {CHOSEN} × {STEPS} steps", share), (": copy of three vectors", copies)],
    )
    verdict("per cent of a round", share, 1.0)
    verdict("times a copy", copies, 2.0)


if __name__ == "__main__":
    main()
