"""Targets as the user gives them: class numbers, class names, or values for another objective than classification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedspecial.core.targets import IGNORED, TargetKind
from fedspecial.data.input_arrays import native_array
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.data.samples import Domain


def read_targets(values: Any, where: str) -> tuple[Tensor, tuple[str, ...]]:
    """Targets as a tensor, and the names of their classes where they are names.

    Whole numbers become int64 and real numbers float32. Names become their positions among the sorted names.
    """
    if isinstance(values, Tensor):
        return _number_type(values), ()
    try:
        array = np.asarray([_plain(value) for value in values] if isinstance(values, list | tuple) else values)
    except ValueError:
        raise InputError(f"{where}: the targets have different shapes; all must have the same") from None
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.flat):
        array = array.astype(str)
    if array.dtype.kind in "US" and array.ndim == 1:
        names, numbers = np.unique(array.astype(str), return_inverse=True)
        return torch.from_numpy(numbers.astype(np.int64)), tuple(names.tolist())
    if array.dtype.kind not in "biuf":
        raise InputError(f"{where}: targets are numbers or class names, not {array.dtype.name}")
    array = native_array(array if array.flags.writeable else array.copy())
    return _number_type(torch.as_tensor(array)), ()


def _plain(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value


def _number_type(values: Tensor) -> Tensor:
    return values.float() if values.is_floating_point() else values.long()


def is_class_labels(targets: Tensor) -> bool:
    """Whether targets are one whole number per sample."""
    return targets.dtype == torch.int64 and targets.dim() == 1


def convert(targets: Tensor, kind: TargetKind) -> Tensor:
    """Targets in the type in which an objective of this kind expects them; their shape is checked later."""
    if kind in ("indicators", "values"):
        return targets.float()
    return targets


def check_targets(targets: Tensor, kind: TargetKind, outputs: int, where: str) -> None:
    """Refuse targets that are not of this kind: real numbers, above all, must not be truncated to classes."""
    shape = "×".join(map(str, targets.shape[1:]))
    found = ("real numbers" if targets.is_floating_point() else "whole numbers") + (shape and f" of shape {shape}")
    if kind == "classes" and not is_class_labels(targets):
        raise InputError(
            f"{where}: the targets are {found} per sample, and classification needs one class: give whole numbers "
            "(y.long()) or class names, or choose objective=multilabel, regression or segmentation"
        )
    if kind == "indicators" and (targets.dim() != 2 or not bool(((targets == 0) | (targets == 1)).all())):
        raise InputError(f"{where}: objective=multilabel needs 0 or 1 for each label (samples × labels), not {found}")
    if kind == "masks" and (targets.dim() != 3 or targets.is_floating_point()):
        raise InputError(f"{where}: objective=segmentation needs a class per pixel (samples × height × width)")
    if kind in ("classes", "masks"):
        counted = targets if kind == "classes" else targets[targets != IGNORED]
        for bad in (int(counted.min()), int(counted.max())) if len(counted) else ():
            if not 0 <= bad < outputs:
                raise InputError(f"{where}: label {bad} is outside 0…{outputs - 1}")
    elif targets.is_floating_point() and not bool(targets.isfinite().all()):
        raise InputError(f"{where}: a target is NaN or infinite")


def output_names(parts: Sequence[Tensor], kind: TargetKind) -> tuple[str, ...]:
    """The model's outputs, numbered: classes of masks, labels, or values. `parts`: the targets of all domains."""
    if kind == "masks" or (kind == "any" and not parts[0].is_floating_point() and parts[0].dim() != 2):
        counted = [part[part != IGNORED] if kind == "masks" else part for part in parts]
        return tuple(map(str, range(1 + max((int(part.max()) for part in counted if len(part)), default=0))))
    return tuple(map(str, range(parts[0].shape[1] if parts[0].dim() > 1 else 1)))


def present_labels(parts: Sequence[Tensor]) -> Tensor:
    """The labels that occur in any of the parts, in ascending order: they are the classes of a list of domains."""
    found: Tensor = torch.cat(list(parts)).unique()  # type: ignore[no-untyped-call]
    if len(found) and int(found[0]) < 0:
        raise InputError(f"label {int(found[0])}: a label is a class number from 0, or a name")
    return found


def names_of(domains: Sequence[Domain]) -> tuple[str, ...]:
    """The class names of domains whose labels were given as names; empty if they were numbers."""
    parts = [(domain, part) for domain in domains for part in (domain.train, domain.test) if len(part)]
    named = [part.classes for _, part in parts if part.classes]
    if named and len(named) < len(parts):
        odd = next(domain.name for domain, part in parts if not part.classes)
        raise InputError(f"domain '{odd}': its labels are numbers, those of other domains are names; use one of them")
    return tuple(sorted(set().union(*named)))


def numbered(targets: Tensor, own: Sequence[str], classes: Sequence[str], where: str) -> Tensor:
    """Labels that count `own` names, as positions in `classes`."""
    positions = {name: number for number, name in enumerate(classes)}
    for name in own:
        if name not in positions:
            raise InputError(f"{where}: the label '{name}' is not one of the classes {', '.join(classes)}")
    return torch.tensor([positions[name] for name in own], dtype=torch.int64)[targets]
