"""FedAvg in pfl-research: `SimulatedBackend`, one process, no evaluation after the first round, no printed metrics.

pfl does not shuffle: the batches of a client are slices of its tensors. The other sides draw a new order every round.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from protocol import Problem, client_data, serve
from torch import Tensor
from torch.nn.functional import cross_entropy


class Logistic(torch.nn.Linear):
    """The model with the two methods that pfl asks for."""

    steps = 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.steps += 1
        return cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {}


def main() -> None:
    problem = Problem.from_json(sys.argv[1])
    torch.set_num_threads(problem.threads)
    module = Logistic(problem.features, problem.classes)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    users = dict(enumerate(client_data(problem)))
    data = FederatedDataset.from_slices(users, get_user_sampler("minimize_reuse", list(users)))
    backend = SimulatedBackend(training_data=data, val_data=data)
    train = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=problem.lr, local_batch_size=problem.batch)
    algorithm = FederatedAveraging()
    total = 0

    def run_rounds(rounds: int) -> int:
        nonlocal total
        total, before = total + rounds, module.steps
        # The algorithm counts its rounds over all calls, so the number to reach is the total.
        params = NNAlgorithmParams(
            central_num_iterations=total,
            evaluation_frequency=sys.maxsize,
            train_cohort_size=problem.per_round,
            val_cohort_size=0,
        )
        algorithm.run(params, backend, model, train, send_metrics_to_platform=False)
        return module.steps - before

    serve(run_rounds)


if __name__ == "__main__":
    main()
