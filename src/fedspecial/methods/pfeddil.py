"""pFedDIL: a few models for each client, each with an auxiliary head that predicts how familiar a sample is.

    ρ_s = mean of a_s(x) over the client's new samples             when a task begins, for every slot s it owns
    s*  = argmax_s ρ_s, trained again if ρ_{s*} ≥ threshold or d slots are owned; else the task's new slot, from θ_0
    min_w  CE(w) + L_aux + κ Σ_s ρ_s ‖w − w̄_s‖²                    in a round; w̄_s: slot s as the task began
    p(y|x) = Σ_s α_s(x) softmax(f_s(x))_y,   α_s = a_s / Σ_s' a_s'   when it predicts

a_s: the "familiar" entry of softmax(aux_s(features_s(x))) · d: `max_slots` · κ: `kappa` · slots: `pfeddil_slots.py`
· f_1: `server.theta`, f_s: `server.models["slot/s"]` · aux_s: the network "aux" · ρ stays with the client

The server applies FedAvg to each slot, over the clients that trained it. A slot that no client has trained yet is not
used for predictions. A slot gives no probability to classes that it was never trained on.

The method's abstract and a description of it are public, its text is not. Inferred: what the head learns (`signal`:
whether the classifier is right, with equal weight for right and wrong; or real samples against shuffled ones; or no
head, the classifier's confidence), that its gradient stops at the features (`aux_gradient`), κ = 1 and d = 3. A head
that learns whether the classifier is right soon finds everything familiar where small clients make no errors on their
own samples; the presets for one core therefore use `signal: confidence`, and `kappa: 0.01` because later tasks are not
learned with κ = 1 there. With `batch_norm` other than `average`, the statistics are outside the models and all slots
share them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from fedspecial.core.messages import BUFFERS, THETA, Broadcast, Number, Numbers, ServerState, Tensors
from fedspecial.errors import InputError
from fedspecial.methods import pfeddil_slots as slots
from fedspecial.methods.base import (
    ClientContext,
    Exchange,
    Method,
    ProblemSpec,
    ProximalTerm,
    Query,
    QueryResult,
    RoundInfo,
    ServerContext,
    StepReport,
)
from fedspecial.methods.pfeddil_shuffle import shuffled

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rho = dict[int, Number]


@dataclass(frozen=True)
class PFedDil(Method):
    """Give each client a few models and mix their predictions by how familiar a sample is to each of them.

    p(y|x) = Σ_s α_s(x) softmax(f_s(x))_y, α_s = a_s / Σ_s' a_s'

    Args:
        threshold: Mean familiarity ρ from which on a client trains one of its models again, ≥ 0.
        max_slots: Largest number of models per client, ≥ 1.
        kappa: Weight κ of the proximal term towards the client's models, ≥ 0; FedAvg at 0 with threshold=0.
        signal: How familiarity is learned: "correctness", "pseudo_negative" or "confidence".
        aux_gradient: Let the gradient of the auxiliary head reach the features.
        pool: "personal": each client chooses its model; "global": the mean ρ of the clients decides for all of them.
        new_slot: "initial": a new model starts from the initial weights; "best": from the most familiar model.

    Example:
        ``fedspecial.run("digits-shift", method=PFedDil(signal="confidence", kappa=0.01))``

    Reference:
        Li et al., Personalized Federated Domain-Incremental Learning Based on Adaptive Knowledge Matching, ECCV 2024.
    """

    name: ClassVar[str] = "pfeddil"
    needs_class_scores: ClassVar[bool] = True
    fedavg_when: ClassVar = {"threshold": 0.0, "kappa": 0.0}
    personal: ClassVar[bool] = True
    memory_excluded: ClassVar = frozenset({"payload/start"})

    threshold: Annotated[Weight, Field(description="familiarity from which on a model is trained again")] = 0.8
    max_slots: Annotated[int, Field(ge=1, description="largest number of models per client")] = 3
    kappa: Annotated[Weight, Field(description="weight of the proximal term to the client's models")] = 1.0
    signal: Annotated[
        Literal["correctness", "pseudo_negative", "confidence"], Field(description="how familiarity is learned")
    ] = "correctness"
    aux_gradient: Annotated[bool, Field(description="let the auxiliary head's gradient reach the features")] = False
    pool: Annotated[
        Literal["personal", "global"], Field(description="each client chooses its model, or all choose together")
    ] = "personal"
    new_slot: Annotated[
        Literal["initial", "best"], Field(description="a new model starts from the initial weights or the best match")
    ] = "initial"

    def check_problem(self, problem: ProblemSpec) -> None:
        if problem.features is None and self.signal != "confidence":
            raise InputError(
                f"method=pfeddil: signal={self.signal} needs a model with `features` and a linear `fc`; "
                "signal=confidence takes any"
            )

    def networks(self, problem: ProblemSpec) -> dict[str, nn.Module]:
        return {} if self.signal == "confidence" else {"aux": nn.Linear(problem.features or 0, 2)}

    # --- server half ------------------------------------------------------------------------------------------

    def begin_task(self, server: ServerState, context: ServerContext) -> Exchange:
        if context.task == 1:
            slots.create(server, context.problem.clients)
            return
        slots.add_task(server, context.task)
        owners = [client for client in range(context.problem.clients) if slots.owned(server, client)]

        def check(client: int, result: QueryResult) -> str | None:
            return self._problem_with_choice(slots.owned(server, client), context.task, result.numbers)

        results = yield Query("choose", lambda client: self._owned_slots(server, client, context.task), owners, check)
        choices = {client: result.numbers for client, result in results.items() if result.numbers}
        if self.pool == "global" and choices:
            choices = dict.fromkeys(owners, self._choice(_mean_rho(list(choices.values())), context.task))
        opening = Counter(int(choice.get("best", 0)) for choice in choices.values() if choice["slot"] == context.task)
        if opening:
            # Of slots named by equally many clients, the one of the first client; 0 where no copy is wanted.
            slots.open_slot(server, context.task, like=opening.most_common(1)[0][0])
        for client, choice in choices.items():
            slots.assign(server, client, int(choice["slot"]), context.task)
        slots.store_start(server)

    def broadcast(self, server: ServerState, client: int, task: int, round: int) -> Broadcast:
        slot = slots.current(server, client)
        model, others = slots.model_key(slot), [s for s in slots.owned(server, client) if s != slot]
        roles = {} if slot == 1 else {"theta": model, "aux": slots.head_key(slot)}
        message = Broadcast(task, round, slots.contents(server, [slot]), roles=roles)
        # Downloaded when the previous task ended; listed again because the client uses them and they take memory.
        message.payloads |= {key: slots.start(server, key) for key in slots.contents(server, others)}
        if self.kappa > 0 and slots.start_key(model) in server.models:
            message.payloads[slots.start_key(model)] = slots.start(server, model)
        return message

    def server_step(self, server: ServerState, mean: Tensors, info: RoundInfo) -> StepReport:
        assert info.context is not None
        for key, delta in mean.items():
            if key != BUFFERS:
                slots.vector(server, key).add_(delta, alpha=info.server_lr)
        trained = slots.mark_trained(server, mean, info.context.num_classes)
        return StepReport(metrics={"slots_trained": len(trained)})

    def end_task(self, server: ServerState, context: ServerContext) -> Exchange:
        yield Query("fetch", lambda client: self._owned_slots(server, client, context.task))
        slots.delete_start(server)

    def eval_broadcast(self, server: ServerState, client: int, task: int) -> Broadcast:
        mine = slots.owned(server, client)
        if not mine:
            return Broadcast(task, 0, {THETA: server.theta})
        return Broadcast(task, 0, slots.contents(server, mine), numbers=slots.known_classes(server, mine))

    def _owned_slots(self, server: ServerState, client: int, task: int) -> Broadcast:
        mine = slots.owned(server, client)
        return Broadcast(task, 0, {}, slots.contents(server, mine), slots.known_classes(server, mine))

    def _problem_with_choice(self, owned: Sequence[int], task: int, choice: Numbers) -> str | None:
        """Why a client's choice cannot be used, or None; a client without samples makes no choice."""
        if self.pool == "global":
            usable = set(choice) == set(map(str, owned)) and all(map(math.isfinite, choice.values()))
        else:
            usable = choice.get("slot") in (*owned, task) and choice.get("best", 0) in (0, *owned)
        return None if usable or not choice else f"it chose {choice} of the slots {list(owned)}"

    def _choice(self, rho: Rho, task: int) -> Numbers:
        """The slot to train and, where a new one begins as a copy, of which."""
        best = max(rho, key=lambda slot: (rho[slot], -slot))
        reuse = rho[best] >= self.threshold or len(rho) >= self.max_slots
        choice: Numbers = {"slot": best if reuse else task}
        return choice | {"best": best} if self.new_slot == "best" else choice

    # --- client half ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def answer_query(self, context: ClientContext, query: str) -> QueryResult:
        """Choose a slot for the new task's data, or just download the models that a task has ended with."""
        if query == "fetch" or not len(context.data):
            return QueryResult()
        task, rho = context.broadcast.task, {}
        for slot, classes in slots.read_classes(context.broadcast.numbers).items():
            self._load(context, slot)
            total = sum(
                float(self._slot_prediction(context, x, int(classes))[1].sum()) for x, _ in context.data.batches()
            )
            rho[slot] = total / len(context.data)
        context.state.numbers = slots.rho_numbers(task, rho)
        if self.pool == "global":
            return QueryResult(numbers={str(slot): value for slot, value in rho.items()})
        return QueryResult(numbers=self._choice(rho, task))

    def proximal_term(self, context: ClientContext) -> ProximalTerm | None:
        """κ Σ ρ_s ‖w − w̄_s‖² has the gradient of κ Σρ_s ‖w − c‖², c the mean of the w̄_s weighted by ρ_s."""
        message = context.broadcast
        rho = slots.read_rho(message.task, context.state.numbers)
        total = sum(rho.values())
        if self.kappa == 0 or total == 0:
            return None
        center = torch.zeros_like(context.weights)
        for slot, value in rho.items():
            key = slots.model_key(slot)
            start = message.payloads[slots.start_key(key) if key == message.key(THETA) else key]
            center.add_(start[: len(center)], alpha=value / total)
        context.scratch["center"] = center
        return ProximalTerm(center, 2 * self.kappa * total)

    def loss(self, context: ClientContext, x: Tensor, y: Tensor) -> Tensor:
        if self.signal == "confidence":
            return super().loss(context, x, y)
        features, logits = _forward(context, x)
        return cross_entropy(logits, y) + self._auxiliary(context, x, features, logits.argmax(1) == y)

    def _auxiliary(self, context: ClientContext, x: Tensor, features: Tensor, right: Tensor) -> Tensor:
        """Cross-entropy of the auxiliary head, with equal total weight for both classes, however rare one is."""
        if self.signal == "pseudo_negative":
            features, right = self._against_shuffled(context, x)
        familiar = right.long()
        # Not `bincount`, which waits for the device to learn the length of its result.
        weight = 1 / torch.stack(((~right).sum(), right.sum())).clamp_min(1)
        scores = context.networks["aux"].module(features if self.aux_gradient else features.detach())
        return cross_entropy(scores, familiar, weight=weight)

    def _against_shuffled(self, context: ClientContext, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features of the samples and of shuffled ones, as they are when predicting; which of them are real."""
        both = torch.cat([x, shuffled(x, context.problem.kind, context.generator)])
        context.model.module.eval()
        with torch.set_grad_enabled(self.aux_gradient):
            features, _ = _forward(context, both)
        context.model.train()
        return features, torch.arange(len(both), device=x.device) < len(x)

    def after_step(self, context: ClientContext) -> None:
        """The head's step of plain SGD, with the gradient that the classifier's backward pass left."""
        for network in context.networks.values():
            for parameter in network.trainable:
                if parameter.grad is not None:
                    parameter.detach().add_(parameter.grad, alpha=-context.lr)
                    parameter.grad = None

    def predict(self, context: ClientContext, x: Tensor) -> Tensor:
        known, outputs = slots.read_classes(context.broadcast.numbers), context.num_classes
        if not known:
            return super().predict(context, x)
        predictions = [self._shared_prediction(context, slot, int(classes), x) for slot, classes in known.items()]
        if len(predictions) == 1:
            return pad(predictions[0][0], (0, outputs - predictions[0][0].shape[1]), value=-torch.inf)
        alpha = gate(torch.stack([familiarity for _, familiarity in predictions]))
        votes = (share[:, None] * logits.softmax(1) for share, (logits, _) in zip(alpha, predictions, strict=True))
        return torch.stack([pad(vote, (0, outputs - vote.shape[1])) for vote in votes]).sum(0)

    def _shared_prediction(self, context: ClientContext, slot: int, classes: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """A slot's prediction for a batch, computed once for all clients that own the slot."""
        key = f"{slot}/{int(context.positions[0])}"
        if key not in context.scratch:
            self._load(context, slot)
            context.scratch[key] = self._slot_prediction(context, x, classes)
        prediction: tuple[Tensor, Tensor] = context.scratch[key]
        return prediction

    def _load(self, context: ClientContext, slot: int) -> None:
        vectors = {**context.broadcast.vectors, **context.broadcast.payloads}
        context.model.load(vectors[slots.model_key(slot)])
        for network in context.networks.values():
            network.load(vectors[slots.head_key(slot)])

    def _slot_prediction(self, context: ClientContext, x: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """f_s(x) on the classes that the slot knows, and a_s(x), of the slot that is loaded."""
        if self.signal == "confidence":
            logits = context.model(x)[:, :classes]
            return logits, logits.softmax(1).amax(1)
        features, logits = _forward(context, x)
        return logits[:, :classes], context.networks["aux"].module(features).softmax(1)[:, 1]


def _mean_rho(rhos: Sequence[Numbers]) -> Rho:
    """The mean of each slot over the clients that own it; a site that joined later does not own the earlier ones."""
    named = dict.fromkeys(slot for rho in rhos for slot in rho)
    known = {slot: [rho[slot] for rho in rhos if slot in rho] for slot in named}
    return {int(slot): sum(values) / len(values) for slot, values in known.items()}


def _forward(context: ClientContext, x: Tensor) -> tuple[Tensor, Tensor]:
    """Features and scores of a batch."""
    module: Any = context.model.module
    features = module.features(x)
    return features, module.fc(features)


def gate(familiarity: Tensor) -> Tensor:
    """α: each slot's share of the familiarity that all have of a sample; slots × samples."""
    familiarity = familiarity.clamp_min(torch.finfo(familiarity.dtype).tiny ** 0.5)
    return familiarity / familiarity.sum(0)
