"""The client of the Flower adapter, in a module of its own: Ray's actors import it instead of unpickling its code."""

from __future__ import annotations

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from protocol import Problem, client_data
from torch import Tensor
from torch.nn.functional import cross_entropy

app = ClientApp()


@cache
def setup(text: str) -> tuple[Problem, torch.nn.Linear, list[tuple[Tensor, Tensor]]]:
    """Problem, model and data, made once per actor and used for all its clients."""
    problem = Problem.from_json(text)
    torch.set_num_threads(problem.threads)
    return problem, torch.nn.Linear(problem.features, problem.classes), client_data(problem)


@app.train()
def train(message: Message, context: Context) -> Message:
    problem, model, data = setup(str(message.content["config"]["problem"]))
    x, y = data[int(context.node_config["partition-id"])]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    parameters, steps = list(model.parameters()), 0
    for batch in torch.randperm(len(x)).split(problem.batch):
        cross_entropy(model(x[batch]), y[batch]).backward()
        steps += 1
        with torch.no_grad():
            for parameter in parameters:
                parameter.add_(parameter.grad, alpha=-problem.lr)
                parameter.grad = None
    metrics = MetricRecord({"num-examples": len(x), "steps": steps})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
