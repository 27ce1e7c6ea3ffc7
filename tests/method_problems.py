"""A small problem for each method: its benchmark and the settings with which it is quick."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedspecial import Benchmark, methods
from fedspecial.config import preset_settings
from fedspecial.errors import InputError
from fedspecial.methods.base import ProblemSpec
from toy_problems import images, rotated_blobs

# The further networks are as small as possible: no test here depends on how well they learn.
SMALL = {"generator_width": 4, "latent": 8, "synthetic": 8, "iterations": 3, "server_iterations": 2, "gan_size": 8}

IMAGE_MODEL = {"model": "cnn", "width": 4}


def problem_for(name: str) -> tuple[Benchmark, dict[str, Any]]:
    """The benchmark and settings for a method: a table, or small images if the method needs images."""
    sizes = {
        k: v for k, v in preset_settings("digits-shift")["methods"].get(name, {}).items() if k not in ("lam", "mu")
    }
    sizes |= {k: v for k, v in SMALL.items() if k in {field.name for field in dataclasses.fields(methods.find(name))}}
    try:
        methods.find(name)().check_problem(ProblemSpec("table", (6,), 3, 4, features=8))
    except InputError:
        return images(tasks=3), {**IMAGE_MODEL, **sizes}
    return rotated_blobs(), sizes
