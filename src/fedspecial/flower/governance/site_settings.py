"""Which settings a site accepts from the server. Needs neither Flower nor torch.

The server of a federation is not trusted with what a site reads or executes. So there is a list of settings that a site
accepts, and everything else is refused:

    VALUES   numbers, switches and fixed choices: they cannot name anything
    NAMED    built-in names, or the name of code that the site's own policy lists; never a file or a module
    NAMES    plain names without path separators: domains of a trial, a column

The settings in SERVER_ONLY are never sent. A new setting is in none of these lists: until it is added to one, the
server does not send it and a site refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from fedspecial.config import Config, RunSettings, Settings
from fedspecial.core.imports import is_object_name
from fedspecial.errors import InputError

VALUES = frozenset(
    {
        *("seed", "rounds", "local_epochs", "local_steps", "batch_size", "min_batch", "clients", "clients_per_round"),
        *("cap", "holdout", "image_size", "on_bad", "partition", "alpha", "min_per_client", "shared_proportions"),
        *("client_lr", "client_lr_decay", "client_lr_reset", "optimizer", "momentum", "weight_decay"),
        *("batch_norm", "bank_temperature", "bank_size", "width", "precision", "deterministic", "threads", "estimate"),
        *("stream", "blend_rounds", "stagger_rounds", "repeats", "detect"),
    }
)
NAMED = ("method", "model", "objective", "benchmark")
NAMES = frozenset({"domains", "partition_by"})
SERVER_ONLY = frozenset(
    {
        # Files, hosts and devices: each side has its own.
        *("data", "options", "encoder", "weights", "device", "out", "trackers", "engine", "ray_address", "workers"),
        *("cpus_per_client", "gpus_per_client"),
        # What only the server computes with.
        *("server_lr", "server_optimizer", "server_momentum", "server_beta1", "server_beta2", "server_tau"),
        *("server_optimizer_reset", "weighting", "aggregation", "max_faulty", "clip_norm", "norm_limit"),
        *("mode", "buffer", "staleness", "staleness_exponent", "staleness_hinge", "max_staleness"),
        *("staleness_normalise", "scale_steps", "latency", "latency_seconds", "latency_spread", "client_speed"),
        *("availability", "drop_rate", "deadline_seconds", "min_updates", "over_select"),
        *("detect_threshold", "detect_pause", "bank_choice"),
        *("dp_clip", "dp_noise_multiplier", "dp_epsilon", "dp_delta", "eval_every", "eval_cap", "checkpoint_seconds"),
    }
)

_PLAIN_NAME = re.compile(r"\w[\w .+-]{0,99}")


class PolicyError(InputError):
    """The server asked for something that the site does not allow. The text contains nothing about the site's data."""


def is_plain_name(text: str) -> bool:
    """Whether a name from the server can be used in a path: no separators, no "..", not hidden."""
    return bool(_PLAIN_NAME.fullmatch(text)) and ".." not in text and text == text.strip(" .")


def check_plain_names(key: str, names: Collection[str]) -> None:
    for name in names:
        if not is_plain_name(name):
            raise InputError(
                f"{key}: {name!r} is not a plain name (letters, digits, space, '.', '_', '+' and '-'; no '/' and '..')"
            )


def settings_for_sites(resolved: RunSettings, *, trial: bool) -> Settings:
    """The settings that the server sends: all that sites need, complete, so that no preset is needed to read them.

    Of code in a file (`file.py:Name`) only the name is sent; each site's policy says which file that is.
    """
    sent = resolved.config.model_dump(mode="json", include={*VALUES, *NAMED, *NAMES})
    if not trial:
        del sent["benchmark"]
    for key in NAMED:
        if isinstance(sent.get(key), str) and is_object_name(sent[key]):
            sent[key] = sent[key].rpartition(":")[2]
    return sent | {key: value for key, value in asdict(resolved.method).items() if value is not None}


def check_accepted(settings: Mapping[str, Any], of_method: Collection[str]) -> None:
    """Refuse a setting that is not in the lists, or whose value could name something.

    of_method: the method's own settings
    """
    for key, value in settings.items():
        if key in Config.model_fields and key not in VALUES and key not in NAMED and key not in NAMES:
            raise PolicyError(f"the setting {key} is not accepted from the server")
        if key not in Config.model_fields and key not in of_method:
            raise PolicyError(f"{_shown(key)} is not a setting of this method")
        if not _is_plain(value):
            raise PolicyError(f"{key}={_shown(value)}: only numbers and plain names are accepted from the server")


def _is_plain(value: Any) -> bool:
    if value is None or isinstance(value, bool | int | float):
        return True
    if isinstance(value, list):
        return all(not isinstance(part, list) and _is_plain(part) for part in value)
    return isinstance(value, str) and is_plain_name(value)


def _shown(value: object) -> str:
    return repr(value)[:80]
