"""How well tasks were detected: a pure function of the rounds in which they were, and of the true borders.

Rounds are counted over the whole run from 0. A border b is the first round of another domain, or the middle of the
change where clients change over W rounds. A task that is detected after round a begins with round a + 1, so its delay
is a + 1 − b rounds: 1 is the least for a sharp border. The first detection from the beginning of the change (b − W/2)
on, and no later than half the rounds of a domain after its end (b + W/2), belongs to the border; without one, the
border was missed. Every other detection is a false alarm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class DetectionScore:
    """delays: of each border in rounds, None where it was missed · false_alarms: rounds after which they were raised"""

    borders: list[int]
    detected: list[int]
    delays: list[int | None]
    false_alarms: list[int]
    rounds: int

    @property
    def missed(self) -> int:
        return self.delays.count(None)

    @property
    def mean_delay(self) -> float | None:
        known = [delay for delay in self.delays if delay is not None]
        return fmean(known) if known else None

    @property
    def false_alarms_per_100(self) -> float:
        return 100 * len(self.false_alarms) / self.rounds

    def to_json(self) -> dict[str, object]:
        return {
            "borders": self.borders,
            "detected": self.detected,
            "delays": self.delays,
            "mean_delay": self.mean_delay,
            "missed_borders": self.missed,
            "false_alarms": self.false_alarms,
            "false_alarms_per_100_rounds": self.false_alarms_per_100,
        }


def score_detection(
    detected: Sequence[int], borders: Sequence[int], *, rounds: int, per_domain: int, change_rounds: int = 0
) -> DetectionScore:
    """detected: the rounds after which a task was detected · rounds: of the run · per_domain: rounds of a domain"""
    free, delays = list(detected), []
    before, after = change_rounds // 2, change_rounds - change_rounds // 2 + per_domain // 2
    for border in borders:
        found = [at for at in free if border - before <= at < border + max(after, 1)]
        delays.append(found[0] + 1 - border if found else None)
        if found:
            free.remove(found[0])
    return DetectionScore(list(borders), list(detected), delays, free, rounds)
