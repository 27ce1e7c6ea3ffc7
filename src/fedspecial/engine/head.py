"""A head that grows: in class-incremental runs the layout changes at a task's start and everything is laid anew."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedspecial.core.messages import ServerState, Tensors
from fedspecial.core.streams import torch_stream
from fedspecial.core.vector import FlatModel, Layout
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.engine.loop import Run


def grow(run: Run, task: int) -> None:
    """Give the head the outputs this task needs; old rows are copied, new ones come from a named stream.

    What the server keeps in the model's shape (anchors, teachers) is padded with the fresh rows, so that distances to
    it start at zero.
    """
    wanted = run.federation.num_classes(task)
    if run.federation.benchmark.incremental == "domain":
        return
    run.model.load(run.vector)
    old, whole = run.model.layout, run.vector
    if not wider_head(run.model.module, wanted, run.config.seed, task):
        return
    run.model = FlatModel(run.model.module)
    run.engine.grown(run.model)
    new = run.model.layout
    run.vector = run.model.vector.clone()
    learned = new.size if len(run.server.theta) == old.size else new.num_weights
    tensors = {
        name: tensor
        if name.partition("/")[0] in run.networks or not _lies_in(tensor, old)
        # A network's other versions stand behind its name: "aux", "aux/2".
        else relaid(tensor, old, new, run.vector)
        for name, tensor in run.server.tensors.items()
    }
    assert torch.equal(relaid(whole, old, new, run.vector), run.vector)
    run.server = ServerState(run.vector[:learned], tensors, run.server.numbers)


def pad_to_layout(tensors: Tensors, model: FlatModel) -> Tensors:
    """What a client has kept since its head was smaller, padded to the model as it is now."""
    new, head = model.layout, model.module.get_submodule("fc")
    assert isinstance(head, nn.Linear)
    row = head.in_features + (head.bias is not None)
    result = dict(tensors)
    vectors = {name: tensor for name, tensor in tensors.items() if tensor.dim() == 1 and tensor.dtype == torch.float32}
    for name, tensor in vectors.items():
        for whole in (new.size, new.num_weights):
            missing = whole - len(tensor)
            if not _lies_in(tensor, new) and 0 < missing < row * head.out_features and missing % row == 0:
                result[name] = relaid(tensor, _narrower(new, missing // row), new, model.vector)
    return result


def _narrower(layout: Layout, rows: int) -> Layout:
    """The layout as it was when the head had that many rows less."""
    slots, offset = [], 0
    for slot in layout.slots:
        grows = slot.name in ("fc.weight", "fc.bias")
        shape = (slot.shape[0] - rows, *slot.shape[1:]) if grows else slot.shape
        slots.append(replace(slot, shape=shape, offset=offset))
        offset += slots[-1].numel
    return Layout(tuple(slots))


def _lies_in(tensor: Tensor, layout: Layout) -> bool:
    return tensor.dim() == 1 and len(tensor) in (layout.size, layout.num_weights)


def relaid(vector: Tensor, old: Layout, new: Layout, fresh: Tensor) -> Tensor:
    """`vector` of the old layout in the new one; entries that did not exist are taken from `fresh`."""
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
    with torch_stream(seed, "head", task):
        wider = nn.Linear(head.in_features, outputs, bias=head.bias is not None)
    with torch.no_grad():
        wider.weight[: head.out_features] = head.weight
        if head.bias is not None:
            wider.bias[: head.out_features] = head.bias
    module.fc = wider
    return True
