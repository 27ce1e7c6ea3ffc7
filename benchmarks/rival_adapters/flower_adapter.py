"""FedAvg in Flower's simulation on Ray: Flower's own strategy and loop, one core per client, no evaluation."""

from __future__ import annotations

import sys

import flower_client
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from protocol import Problem, serve

OBJECT_STORE_BYTES = 200_000_000

app = ServerApp()


def total_steps(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
    return MetricRecord({"steps": sum(int(reply["metrics"]["steps"]) for reply in replies)})


@app.main()
def main(grid: Grid, context: Context) -> None:
    problem = Problem.from_json(sys.argv[1])
    torch.set_num_threads(problem.threads)
    strategy = FedAvg(
        fraction_train=problem.per_round / problem.clients,
        fraction_evaluate=0.0,
        min_train_nodes=problem.per_round,
        min_available_nodes=problem.clients,
        train_metrics_aggr_fn=total_steps,
    )
    arrays = ArrayRecord(torch.nn.Linear(problem.features, problem.classes).state_dict())

    def run_rounds(rounds: int) -> int:
        nonlocal arrays
        config = ConfigRecord({"problem": problem.to_json()})
        result = strategy.start(grid, arrays, num_rounds=rounds, train_config=config)
        arrays = result.arrays
        return sum(int(metrics["steps"]) for metrics in result.train_metrics_clientapp.values())

    serve(run_rounds)


if __name__ == "__main__":
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    ray = {"object_store_memory": OBJECT_STORE_BYTES, "log_to_driver": False, "_node_ip_address": "127.0.0.1"}
    run_simulation(
        app,
        flower_client.app,
        num_supernodes=Problem.from_json(sys.argv[1]).clients,
        backend_config={"client_resources": resources, "init_args": ray},
    )
