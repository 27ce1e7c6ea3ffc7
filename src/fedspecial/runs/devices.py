"""Torch as a run needs it: device, precision, number of threads, deterministic algorithms."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator

import torch

from fedspecial.config import Config
from fedspecial.errors import InputError

log = logging.getLogger("fedspecial")


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
    """Torch as the settings say, whatever the caller has set; all of it is put back afterwards.

    A model must not depend on where `fedspecial.run` is called: with another default type, inside `no_grad` or
    autocast, it would be another one than that of the same settings elsewhere, or of worker processes.
    """
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    warn_only, benchmark = torch.is_deterministic_algorithms_warn_only_enabled(), torch.backends.cudnn.benchmark
    torch.set_num_threads(config.threads)  # the same number gives the same sums
    if config.deterministic:
        use_deterministic_algorithms()
    try:
        with ordinary_torch():
            yield
    finally:
        torch.set_num_threads(threads)
        if config.deterministic:  # not otherwise: this call imports torch's compiler, which takes more than a second
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
            torch.backends.cudnn.benchmark = benchmark


@contextlib.contextmanager
def ordinary_torch() -> Iterator[None]:
    """Gradients, float32, the CPU and full precision, as in a new process."""
    dtype = torch.get_default_dtype()
    with contextlib.ExitStack() as changed:
        changed.enter_context(torch.inference_mode(False))
        changed.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(kind):
                changed.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":  # not otherwise: with such a context every operation is slower
            changed.enter_context(torch.device("cpu"))
        changed.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        yield


def use_deterministic_algorithms() -> None:
    """An operation without a deterministic algorithm is then an error. cuBLAS reads its variable when CUDA starts."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


_lock = threading.RLock()


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Runs in other threads wait: torch's random numbers, its number of threads and its default type belong to the
    process, and two runs that shared them would not have the models of their seeds."""
    lock = _lock
    if not lock.acquire(blocking=False):
        log.warning("another run is in progress in this process; this call goes on when it has ended")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _renew_lock() -> None:
    """In a forked process the thread that holds the lock does not exist, so nobody would release it."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
