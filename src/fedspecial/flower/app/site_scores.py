"""The metrics of several sites on one domain, put together at the server."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedspecial.flower.app.wire import ReplyHeader
from fedspecial.flower.governance.promotion import Count, Measured, SiteScore, capped_weights, pooled
from fedspecial.objectives.base import Objective, Scores, mean_scores


@dataclass
class SiteScores:
    """
    share:   the largest share of one site in the mean, see `capped_weights`
    by_site: the main metric of each site that could test the domain
    """

    objective: Objective
    share: float = 1.0
    by_site: dict[str, SiteScore] = field(default_factory=dict)
    _metrics: list[Scores] = field(default_factory=list)
    _samples: dict[str, int] = field(default_factory=dict)

    def add(self, site: str, header: ReplyHeader, task: int) -> str | None:
        """Returns why what a site says about a task is not used, or None."""
        correct, samples = header.counts.get(str(task), (0, 0))
        if not samples:
            return None
        metrics = header.metrics.get(str(task), {})
        metric = self.objective.main
        main = metrics.get(metric.name)
        if isinstance(main, float) and not metric.allows(main):
            return f"task {task}: it claims {metric.name}={main:g}, which is outside {metric.limits}"
        self._metrics.append(metrics)
        self._samples[site] = samples
        if self.objective.counts_correct:
            self.by_site[site] = Count(correct, samples)
        elif isinstance(main, float):
            self.by_site[site] = Measured(main, samples)
        return None

    def capped_sites(self) -> list[str]:
        """Sites that report more than their share of the test samples."""
        weights = capped_weights(self._samples, self.share)
        return [site for site, samples in self._samples.items() if weights[site] < samples and len(weights) > 1]

    def together(self) -> Scores | None:
        """Main metric first: over all samples where correct predictions are counted, else the mean over sites."""
        weights = capped_weights(self._samples, self.share)
        scores = mean_scores(self._metrics, [float(weight) for weight in weights.values()])
        if scores is None:
            return None
        main = float(pooled(self.by_site, self.share)) if self.by_site else None
        return {**scores, self.objective.main.name: main}
