"""Samples that are not real, against which pFedDIL's auxiliary head learns with ``signal=pseudo_negative``."""

from __future__ import annotations

import torch
from torch import Tensor

PATCHES = 4
"""Patches per side into which images are cut before they are shuffled, where their size allows it."""


def shuffled(x: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """Samples that are not real: an image's patches in another order, anything else with its columns (tokens,
    measurements) permuted among the samples."""
    if kind != "image":
        order = torch.rand(x.shape, generator=generator).argsort(0)
        return x.gather(0, order.to(x.device))
    height, width = (max(1, size // PATCHES) for size in x.shape[-2:])
    rows, columns = x.shape[-2] // height, x.shape[-1] // width
    inside = x[..., : rows * height, : columns * width]
    tiles = inside.reshape(*x.shape[:2], rows, height, columns, width).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    order = torch.rand(tiles.shape[:2], generator=generator).argsort(1).to(x.device)
    mixed = tiles[torch.arange(len(x), device=x.device)[:, None], order]
    mixed = mixed.reshape(len(x), rows, columns, *tiles.shape[2:])
    result = x.clone()
    result[..., : rows * height, : columns * width] = mixed.permute(0, 3, 1, 4, 2, 5).reshape(inside.shape)
    return result
