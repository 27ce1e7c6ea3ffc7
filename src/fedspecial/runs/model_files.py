"""Files of weights: in a run directory model.safetensors at the end, and the frozen part once, when the run begins.

The frozen part is in frozen-HASH.safetensors, HASH being the first digits of its hash, which `model_sha256` covers.
"""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
from torch import Tensor, nn

from fedspecial.core.files import write_atomic
from fedspecial.core.frozen import tensors_sha256
from fedspecial.core.vector import FlatModel
from fedspecial.errors import InputError

MODEL = "model.safetensors"
_DIGITS = 16


def write_frozen(folder: Path, model: FlatModel) -> None:
    """Store the frozen part of a model, if it has one."""
    if (sha256 := model.layout.frozen) is not None:
        path = folder / f"frozen-{sha256[:_DIGITS]}.safetensors"
        write_atomic(path, safetensors.torch.save(model.frozen_state()))


def write_model(folder: Path, state: dict[str, Tensor]) -> None:
    """Store the rest of the model's state: what was trained, its other buffers, and the statistics of earlier tasks."""
    write_atomic(folder / MODEL, safetensors.torch.save(state))


def read_model(folder: Path) -> dict[str, Tensor]:
    """The complete state of the model of a finished run."""
    if not (folder / MODEL).exists():
        if (folder / "result.json").exists():
            raise InputError(
                f"{folder}: {MODEL} is missing; remove result.json, and resume the run to write both again"
            )
        raise InputError(f"{folder}: the run is not finished (no {MODEL}); resume it first")
    state = _read(folder / MODEL)
    for path in sorted(folder.glob("frozen-*.safetensors")):
        frozen = _read(path)
        if tensors_sha256(frozen)[:_DIGITS] != path.stem.removeprefix("frozen-"):
            raise InputError(f"{path}: it was changed after it was written (its content no longer has its hash)")
        state |= frozen
    return state


def load_state(folder: Path, module: nn.Module, state: dict[str, Tensor]) -> None:
    """Load the state into a module of the same model; raises InputError if it is of another one."""
    own = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    for name in sorted(own.keys() ^ state.keys()):
        where = "is not in the file" if name in own else "is not in the model"
        raise InputError(f"{folder}: its model is another one than the given model ('{name}' {where})")
    for name, value in own.items():
        if value.shape != state[name].shape:
            shapes = f"{tuple(state[name].shape)} in the file, {tuple(value.shape)} in the model"
            raise InputError(f"{folder}: its model is another one than the given model ('{name}': {shapes})")
    # Not strict: the file contains tensors only, and a module may have state of other types.
    module.load_state_dict(state, strict=False)


def load_weights(module: nn.Module, path: Path) -> None:
    """Start from weights in a safetensors file; the head may have another number of classes."""
    try:
        state = safetensors.torch.load_file(path)
    except Exception as error:
        raise InputError(f"weights={path}: cannot be read as safetensors ({error})") from None
    own = module.state_dict()
    fitting = {name: tensor for name, tensor in state.items() if name in own and own[name].shape == tensor.shape}
    missing = [name for name in own if name not in fitting and not name.startswith("fc.")]
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing:
        raise InputError(f"weights={path}: it has no '{missing[0]}' of the model's shape ({len(missing)} missing)")
    module.load_state_dict(fitting, strict=False)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except Exception as error:
        raise InputError(f"{path}: cannot be read as safetensors ({error})") from None
