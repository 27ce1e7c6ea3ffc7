"""The built-in benchmarks: each file has one catalogue entry (`ENTRY`) and what is specific to that benchmark.

To add a benchmark, add its file and a line to `MODULES`. A file must not import torch at its top, so that
`fedspecial list` and `--help` stay fast.
"""

from __future__ import annotations

from importlib import import_module

from fedspecial.data.entry import Entry

MODULES = {
    "digits-shift": "digits_shift",
    "digit10": "digit10",
    "pacs": "pacs",
    "vlcs": "vlcs",
    "dn4il": "dn4il",
    "cifar100": "cifar100",
    "glue": "glue",
    "fdu-mtl": "fdu_mtl",
    "heart": "heart",
    "gas-drift": "gas_drift",
    "spoken-digits": "spoken_digits",
    "folders": "folders",
}
"""Benchmark name → file, in the order in which the catalogue lists them."""


def built_in_entry(name: str) -> Entry:
    found: Entry = import_module(f"{__name__}.{MODULES[name]}").ENTRY
    return found
