"""A head that grows: in class-incremental runs the layout changes when a task begins.

Everything that is declared to have the model's layout follows: θ, the anchor, and `models` of server and clients.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedspecial.core.messages import ClientState
from fedspecial.core.streams import torch_stream
from fedspecial.core.vector import FlatModel, Layout
from fedspecial.engine.aggregation.server_optimizer import initial_value
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.engine.run import Run


def grow(run: Run, task: int) -> None:
    """Give the head the outputs this task needs; old rows are copied, new ones come from a named stream.

    The anchor and the server's other models are padded with the same new rows, so that distances to them do not change.
    """
    wanted = run.federation.num_classes(task)
    if run.federation.benchmark.incremental == "domain":
        return
    run.model.load(run.vector)
    old, previous = run.model.layout, run.vector
    if not wider_head(run.model.module, wanted, run.config.seed, task):
        return
    run.model = FlatModel(run.model.module)
    run.engine.set_model(run.model)
    new = run.model.layout
    run.vector = run.model.vector.clone()
    learned = new.size if len(run.server.theta) == old.size else new.num_weights
    assert torch.equal(pad_to_layout(previous, old, new, run.vector), run.vector)
    server = run.server
    server.theta = run.vector[:learned]
    if server.anchor is not None:
        server.anchor = pad_to_layout(server.anchor, old, new, run.vector)
    server.models = {name: pad_to_layout(model, old, new, run.vector) for name, model in server.models.items()}
    for name, values in server.per_weight.items():
        server.per_weight[name] = pad_to_layout(values, old, new, torch.zeros_like(run.vector))
    for name, state in server.optimizer.items():
        start = torch.full_like(run.vector, initial_value(run.config, name))
        server.optimizer[name] = pad_to_layout(state, old, new, start)


def pad_client_models(state: ClientState, model: FlatModel) -> None:
    """Pad the models that a client stored when the head was smaller, so that they fit the model as it is now."""
    outputs = head_of(model).out_features
    if state.outputs != outputs:
        old = _narrower(model.layout, outputs - state.outputs)
        padded = {name: pad_to_layout(past, old, model.layout, model.vector) for name, past in state.models.items()}
        state.models, state.outputs = padded, outputs


def head_of(model: FlatModel) -> nn.Linear:
    """The last layer of a class-incremental run's classifier."""
    head = model.module.get_submodule("fc")
    assert isinstance(head, nn.Linear)
    return head


def _narrower(layout: Layout, rows: int) -> Layout:
    """The layout as it was when the head had `rows` fewer outputs."""
    slots, offset = [], 0
    for slot in layout.slots:
        grows = slot.name in ("fc.weight", "fc.bias")
        shape = (slot.shape[0] - rows, *slot.shape[1:]) if grows else slot.shape
        slots.append(replace(slot, shape=shape, offset=offset))
        offset += slots[-1].numel
    return replace(layout, slots=tuple(slots))


def pad_to_layout(vector: Tensor, old: Layout, new: Layout, fresh: Tensor) -> Tensor:
    """`vector` of the old layout in the new one, with or without buffers; new entries are taken from `fresh`."""
    result = fresh[: new.size if len(vector) == old.size else new.num_weights].clone()
    before = {slot.name: slot for slot in old.slots}
    for slot in new.slots:
        if slot.offset + slot.numel > len(result):
            break
        kept = before[slot.name].view(vector)
        slot.view(result)[: kept.shape[0] if kept.dim() else None].copy_(kept)
    return result


def wider_head(module: nn.Module, outputs: int, seed: int, task: int) -> bool:
    """Append rows to the module's head until it has that many outputs; False if it has them already."""
    head = getattr(module, "fc", None)
    if not isinstance(head, nn.Linear):
        raise InputError("model: a class-incremental run needs a model whose last layer is a linear `fc`")
    if head.out_features >= outputs:
        return False
    if not all(weight.requires_grad for weight in head.parameters()):
        raise InputError("model: the head `fc` is frozen, but a class-incremental run appends rows to it")
    with torch_stream(seed, "head", task):
        wider = nn.Linear(head.in_features, outputs, bias=head.bias is not None, dtype=head.weight.dtype)
    with torch.no_grad():
        wider.weight[: head.out_features] = head.weight
        if head.bias is not None:
            wider.bias[: head.out_features] = head.bias
    module.fc = wider.to(head.weight.device)
    return True
