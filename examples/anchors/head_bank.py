"""SPECIAL+ with a bank of heads, for models without BatchNorm: the last layer of every task is kept.

    θ ← as in special-plus
    p(x) ∝ Σ_k w_k(x)·softmax(W_k·h(x) + b_k),      w_k(x) ∝ exp(−H_k(x)/temperature)

h: the current model up to its last layer · W_k, b_k: the last layer at the end of task k, and the current one · H_k:
the entropy of the k-th prediction. Nothing more is uploaded: the server reads the last layer off its own model. A large
temperature averages the predictions. There are no statistics of inputs to choose by, only the heads' own confidence.

Certificate: that of special-plus; the heads do not change what is learned.
"""

from __future__ import annotations

import torch
from pydantic.dataclasses import dataclass

from fedspecial.methods.special_plus import SpecialPlus

PREFIX = "head_bank/"


@dataclass(frozen=True)
class HeadBank(SpecialPlus):
    fedavg_when = None
    temperature: float = 0.2

    def begin_task(self, server, context):
        super().begin_task(server, context)
        if context.task > 1:
            slots = {slot.name: slot for slot in context.model.layout.slots}
            parts = [slots[name].view(server.theta).flatten() for name in ("fc.weight", "fc.bias")]
            server.tensors[f"{PREFIX}{context.task - 1}"] = torch.cat(parts)

    def eval_broadcast(self, server, client, task):
        message = super().eval_broadcast(server, client, task)
        message.payloads |= {name: values for name, values in server.tensors.items() if name.startswith(PREFIX)}
        return message

    def predict(self, context, x):
        module = context.model.module
        features = module.features(x)
        size = module.fc.weight.numel()
        heads = [values for name, values in context.broadcast.payloads.items() if name.startswith(PREFIX)]
        scores = [features @ head[:size].view_as(module.fc.weight).T + head[size:] for head in heads]
        log_p = torch.stack([*scores, module.fc(features)]).log_softmax(2)
        entropy = -(log_p.exp() * log_p).sum(2)
        weights = torch.log_softmax(-entropy / self.temperature, 0)
        return torch.logsumexp(log_p + weights[:, :, None], 0)
