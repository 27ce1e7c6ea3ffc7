"""MLflow: an experiment "fedspecial" at the server that MLFLOW_TRACKING_URI names, or in MLflow's own default place."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from fedspecial.report.trackers import TrackedRun


class MlflowRun:
    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._run_id = client, run_id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._run_id, [Metric(name, value, now, step) for name, value in values.items()])

    def finish(self) -> None:
        self._client.set_terminated(self._run_id)


def start(run: TrackedRun) -> MlflowRun:
    """A resumed run continues its MLflow run, whose id is in the run directory."""
    import mlflow

    client, known = mlflow.MlflowClient(), run.folder / "mlflow_run_id"
    if run.step and known.exists():
        return MlflowRun(client, known.read_text(encoding="utf-8").strip())
    experiment = client.get_experiment_by_name("fedspecial")
    number = experiment.experiment_id if experiment is not None else client.create_experiment("fedspecial")
    run_id = client.create_run(number, run_name=run.folder.name).info.run_id
    for name, value in run.settings.items():
        client.log_param(run_id, name, str(value)[:500])
    known.write_text(run_id, encoding="utf-8")
    return MlflowRun(client, run_id)
