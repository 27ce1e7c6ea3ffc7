"""Torch as a run needs it: device, precision, number of threads, deterministic algorithms."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from fedspecial.config import Config
from fedspecial.errors import InputError


def device_of(config: Config) -> torch.device:
    """The device of the settings, refused if this machine cannot compute on it with the precision of the settings."""
    try:
        device = torch.device(config.device)
        torch.zeros(1, device=device).item()  # not possible on devices without data, such as "meta"
    except (RuntimeError, AssertionError, NotImplementedError):
        found = ["cpu"] + ["cuda"] * torch.cuda.is_available() + ["mps"] * torch.backends.mps.is_available()
        text = f"device={config.device}: torch cannot use it on this machine; choose one of {', '.join(found)}"
        raise InputError(text) from None
    if config.precision != "float32":
        try:
            with torch.autocast(device.type, getattr(torch, config.precision)):
                torch.zeros(1, 1, device=device).mm(torch.zeros(1, 1, device=device))
        except RuntimeError:
            raise InputError(f"precision={config.precision}: device={config.device} does not support it") from None
    return device


@contextlib.contextmanager
def torch_settings(config: Config) -> Iterator[None]:
    """Torch's threads and its choice of algorithms as the run needs them; both are put back afterwards."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(config.threads)  # the same number gives the same sums
    if config.deterministic:
        use_deterministic_algorithms()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if torch.are_deterministic_algorithms_enabled() != deterministic:  # the call imports torch's compiler: a second
            torch.use_deterministic_algorithms(deterministic)


def use_deterministic_algorithms() -> None:
    """An operation without a deterministic algorithm is then an error. cuBLAS reads its variable when CUDA starts."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
