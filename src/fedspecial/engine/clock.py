"""The simulated clock: how long a client works, whether it can be reached, and whether it drops out.

Client m, asked in version v of task i, works for

    seconds = speed_m · latency(i, v, m),    speed_m = exp(client_speed · z_m),    z_m ~ N(0, 1), once per run

    latency   constant     latency_seconds
              exponential  latency_seconds · Exp(1)
              lognormal    latency_seconds · exp(latency_spread · N(0, 1))
              FILE.csv     one of the client's measurements, chosen uniformly

With probability `drop_rate` it vanishes at a uniformly drawn moment of this time, which the server notices then. Every
number is drawn from a stream of its own (`core/streams.py`), so that time does not depend on what clients compute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedspecial.config import Config
from fedspecial.config.asynchrony_settings import DISTRIBUTIONS
from fedspecial.config.latency_file import Latencies, read_latencies
from fedspecial.core.clock_events import Loss, ServerStep, UpdateLost
from fedspecial.core.streams import stream


@dataclass(frozen=True)
class Work:
    """seconds: until the update arrives, or until the client drops out"""

    seconds: float
    drops_out: bool


@dataclass(frozen=True)
class ClientClock:
    """Draws the work of clients. Without latency all of it takes no time."""

    config: Config
    measured: Latencies = field(default_factory=dict)

    @staticmethod
    def of(config: Config) -> ClientClock:
        named = config.latency in DISTRIBUTIONS
        return ClientClock(config, {} if named else read_latencies(Path(config.latency), config.clients))

    def available(self, task: int, version: int, client: int) -> bool:
        share = self.config.availability
        return share == 1 or stream(self.config.seed, "availability", task, version, client).random() < share

    def work(self, task: int, version: int, client: int) -> Work:
        seconds = self._latency(task, version, client)
        if self.config.drop_rate:
            drop = stream(self.config.seed, "dropout", task, version, client)
            if drop.random() < self.config.drop_rate:
                return Work(seconds * drop.random(), True)
        return Work(seconds, False)

    def _latency(self, task: int, version: int, client: int) -> float:
        config = self.config
        if config.latency == "none":
            return 0.0
        draw = stream(config.seed, "latency", task, version, client)
        factor = 1.0
        if config.client_speed:
            factor = math.exp(config.client_speed * stream(config.seed, "client-speed", client).standard_normal())
        match config.latency:
            case "constant":
                return factor * config.latency_seconds
            case "exponential":
                return factor * config.latency_seconds * draw.standard_exponential()
            case "lognormal":
                return factor * config.latency_seconds * math.exp(config.latency_spread * draw.standard_normal())
            case _:
                return factor * float(draw.choice(self.measured[client]))


@dataclass(frozen=True)
class TimedRound:
    """A synchronous round on the clock.

    used: the clients whose updates are taken, in the order in which they were asked
    lost: client → why its work is not used
    worked: client → how long it worked in this round
    seconds: how long the server waited · end: when the round closed, since the run began
    """

    used: list[int]
    lost: Mapping[int, Loss]
    worked: Mapping[int, float]
    seconds: float
    end: float = 0.0

    def events(self, task: int, round: int) -> list[UpdateLost | ServerStep]:
        """What the event log says about it."""
        lost = [
            UpdateLost(task, round, client, round, reason, self.end, self.worked.get(client, 0.0))
            for client, reason in self.lost.items()
        ]
        worked = math.fsum(self.worked[client] for client in self.used)
        return [*lost, ServerStep(task, round, self.end, self.seconds, worked)]


def time_round(clock: ClientClock, task: int, round: int, asked: Sequence[int]) -> TimedRound:
    """Ask these clients, and close the round when enough updates have arrived, nobody is at work, or at the deadline.

    Enough are `clients_per_round` with over-selection, and otherwise all. Of updates that arrive at the same time, the
    one of the client with the smaller number counts as the first.
    """
    deadline = clock.config.deadline_seconds or math.inf
    works = {client: clock.work(task, round, client) for client in asked if clock.available(task, round, client)}
    arrivals = sorted((work.seconds, client) for client, work in works.items() if not work.drops_out)
    enough = clock.config.clients_per_round if clock.config.over_select else len(asked)
    taken = [(seconds, client) for seconds, client in arrivals if seconds <= deadline][:enough]
    complete = bool(taken) and len(taken) == enough
    close = taken[-1][0] if complete else min(deadline, max((work.seconds for work in works.values()), default=0.0))
    used = {client for _, client in taken}
    lost: dict[int, Loss] = {}
    for client in asked:
        if client not in works:
            lost[client] = "not available"
        elif works[client].drops_out and works[client].seconds <= close:
            lost[client] = "dropped out"
        elif client not in used:
            lost[client] = "not needed" if complete else "after the deadline"
    worked = {client: min(work.seconds, close) for client, work in works.items()}
    return TimedRound([client for client in asked if client in used], lost, worked, close)
