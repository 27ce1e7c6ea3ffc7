"""The stream of domains: which domain each client has in which round. Determined by the settings and the seed alone.

Rounds are counted over the whole run here, from 0. A visit is the time in which a domain is learned: visit v begins at
the border b = (v − 1)·T, where T is the number of rounds of a visit. Without a blend, all clients change at b.

    blended    in the W rounds around b, the share of the new domain at every client is (k + ½)/W, k = 0 … W−1
    staggered  client m changes at b + o_m; the offsets o_m are spread evenly over (−W/2, W/2), in random order
    recurring  the list of domains is learned several times; a domain keeps its partition when it returns

The middle of the blend and the median of the clients' changes are b, which is therefore the border that is announced.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from fedspecial.core.streams import stream

StreamKind = Literal["sharp", "blended", "staggered", "recurring"]

STREAM_ROUND = "stream_round"
"""The name of the current round of the stream in a message, where the data does not follow from the task."""


class Share(NamedTuple):
    """A part of what a client has in a round: `part` (0 … 1) of its samples of the domain that a visit is about.

    leaving: whether the samples are on their way out, so that another part of them is left every round
    """

    visit: int
    part: float
    leaving: bool = False


@dataclass(frozen=True)
class StreamSchedule:
    """
    domains: number of distinct domains
    rounds:  rounds of a visit (T)
    width:   rounds that a change takes (W); 0: sharp
    passes:  how often the list of domains is learned
    """

    domains: int
    rounds: int
    clients: int
    kind: StreamKind = "sharp"
    width: int = 0
    passes: int = 1
    seed: int = 0

    @property
    def num_visits(self) -> int:
        return self.domains * self.passes

    def domain_of(self, visit: int) -> int:
        """The number of the domain that a visit is about, from 1."""
        return (visit - 1) % self.domains + 1

    @property
    def visited(self) -> list[int]:
        """The domain of every visit."""
        return [self.domain_of(visit) for visit in range(1, self.num_visits + 1)]

    @property
    def borders(self) -> list[int]:
        """The rounds in which the domain changes: announced, or to be detected."""
        changes = range(2, self.num_visits + 1) if self.domains > 1 else ()
        return [(visit - 1) * self.rounds for visit in changes]

    def shares(self, client: int, time: int) -> tuple[Share, ...]:
        """What a client has in a round of the stream, the older domain first."""
        time = min(time, self.num_visits * self.rounds - 1)
        if not self.width:
            return (Share(time // self.rounds + 1, 1.0),)
        nearest = (time + self.rounds // 2) // self.rounds  # the border after visit `nearest` is the closest one
        if not 1 <= nearest < self.num_visits:
            return (Share(time // self.rounds + 1, 1.0),)
        old, new, border = nearest, nearest + 1, nearest * self.rounds
        if self.kind == "staggered":
            return (Share(new if time >= border + self._offsets(new)[client] else old, 1.0),)
        step = time - (border - self.width // 2)
        if step < 0:
            return (Share(old, 1.0),)
        if step >= self.width:
            return (Share(new, 1.0),)
        part = (step + 0.5) / self.width
        return (Share(old, 1 - part, leaving=True), Share(new, part))

    def _offsets(self, visit: int) -> np.ndarray:
        return _offsets(self.seed, visit, self.clients, self.width)

    def visits_begun(self, time: int) -> int:
        """How many visits have begun for at least one client."""
        return max(share.visit for client in range(self._distinct) for share in self.shares(client, time))

    @property
    def _distinct(self) -> int:
        """Only staggered clients differ from each other."""
        return self.clients if self.kind == "staggered" else 1


@lru_cache(maxsize=64)
def _offsets(seed: int, visit: int, clients: int, width: int) -> np.ndarray:
    """When each client changes, in rounds from the border; their median is 0."""
    rank = stream(seed, "stagger", visit).permutation(clients)
    return np.rint((rank + 0.5) / clients * width - width / 2).astype(np.int64)


def rows_in(rows: np.ndarray, share: Share, seed: int, client: int) -> np.ndarray:
    """The part of a client's rows that it has. In a blend, samples of the new domain arrive one after another and
    those of the old one leave one after another, each in an order of its own."""
    if share.part >= 1 or not len(rows):
        return rows
    count = max(1, round(share.part * len(rows)))
    order = stream(seed, "blend", share.visit, client, "old" if share.leaving else "new").permutation(len(rows))
    return np.sort(rows[order[:count]])
