"""The metrics of several sites on one domain, put together at the server."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedspecial.flower.app.wire import ReplyHeader
from fedspecial.flower.governance.promotion import Count, Measured, SiteScore, pooled
from fedspecial.objectives.base import Objective, Scores, mean_scores


@dataclass
class SiteScores:
    """by_site: the main metric of each site that could test the domain"""

    objective: Objective
    by_site: dict[str, SiteScore] = field(default_factory=dict)
    _metrics: list[Scores] = field(default_factory=list)
    _samples: list[int] = field(default_factory=list)

    def add(self, site: str, header: ReplyHeader, task: int) -> None:
        correct, samples = header.counts.get(str(task), (0, 0))
        if not samples:
            return
        metrics = header.metrics.get(str(task), {})
        self._metrics.append(metrics)
        self._samples.append(samples)
        main = metrics.get(self.objective.main.name)
        if self.objective.counts_correct:
            self.by_site[site] = Count(correct, samples)
        elif isinstance(main, float):
            self.by_site[site] = Measured(main, samples)

    def together(self) -> Scores | None:
        """Main metric first: over all samples where correct predictions are counted, else the mean over sites."""
        scores = mean_scores(self._metrics, self._samples)
        if scores is None:
            return None
        main = float(pooled(self.by_site)) if self.by_site else None
        return {**scores, self.objective.main.name: main}
