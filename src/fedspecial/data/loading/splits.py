"""From decoded arrays to domains: the published split or a fixed 70/30 split, the cap, the rows of each site."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from fedspecial.data.benchmark import domain_stream
from fedspecial.data.loading.request import LoadRequest
from fedspecial.data.samples import Domain, Samples
from fedspecial.errors import InputError

TRAIN_SHARE = 0.7
BATCH = 512


def split_rows(groups: np.ndarray, seed: int, domain: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows for training (70 %) and testing, drawn within every group (a class, or a class at a site).

    The seed and the domain's name determine the split. A group of one row goes to training: a class that is not trained
    cannot be tested.
    """
    rng = domain_stream(seed, "split", domain)
    train, test = [], []
    for group in np.unique(groups):
        rows = rng.permutation(np.flatnonzero(groups == group))
        cut = int(TRAIN_SHARE * len(rows) + 0.5)
        train.append(rows[:cut])
        test.append(rows[cut:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def cap_rows(labels: np.ndarray, cap: int | None, seed: int, domain: str) -> np.ndarray | None:
    """At most `cap` rows, drawn at random within each class in proportion to its size, at least one per class.

    None if there are no more rows than `cap`, so that memory-mapped data need not be copied.
    """
    if cap is None or len(labels) <= cap:
        return None
    classes, counts = np.unique(labels, return_counts=True)
    if cap < len(classes):
        raise InputError(f"cap={cap}: domain '{domain}' has {len(classes)} classes and needs a sample of each")
    exact = counts * cap / len(labels)
    shares = np.maximum(np.floor(exact).astype(np.int64), 1)
    while (rest := cap - int(shares.sum())) != 0:
        if rest > 0:
            order = np.argsort(shares - exact, kind="stable")[:rest]
            shares[order] += 1
        else:
            shares[np.argmax(shares)] -= 1
    rng = domain_stream(seed, "cap", domain)
    chosen = [
        rng.choice(np.flatnonzero(labels == label), share, replace=False)
        for label, share in zip(classes, shares, strict=True)
    ]
    return np.sort(np.concatenate(chosen))


def domain_as_published(
    name: str,
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    request: LoadRequest,
) -> Domain:
    """A domain with a published training and test part."""
    return Domain(name, _samples(*train, _cap_rows(train[1], request, name)), _samples(*test, None))


def domain_split(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    request: LoadRequest,
    sites: np.ndarray | None = None,
    num_sites: int = 0,
) -> Domain:
    """A domain without a published split: 70/30 by class, or by site and class if the sites are given.

    Targets that are no classes are split, and capped, at random.
    """
    classes = y if y.dtype.kind in "iu" else np.zeros(len(y), np.int64)
    groups = classes if sites is None else sites * (int(classes.max()) + 1) + classes
    train, test = split_rows(groups, request.seed, name)
    if len(test) == 0:
        raise InputError(f"domain '{name}': {_why_no_test(y, sites)}")
    rows = _cap_rows(classes[train], request, name)
    if rows is not None:
        train = train[rows]
    owned = None
    if sites is not None:
        owned = tuple(np.flatnonzero(sites[train] == site) for site in range(num_sites))
    return Domain(name, _samples(x, y, train), _samples(x, y, test), owned)


def _why_no_test(y: np.ndarray, sites: np.ndarray | None) -> str:
    classes = len(np.unique(y)) if y.dtype.kind in "iu" else 1
    few = f"{len(y)} samples are too few for a 70/30 split" if len(y) > 1 else "one sample cannot be split 70/30"
    if sites is not None:
        return f"{few} at each of {len(np.unique(sites))} sites, where a class needs two samples or more to be tested"
    if classes < 2:
        return few
    return (
        f"{few} of {classes} classes, each of which needs two or more; "
        "if the label is a number to be predicted, choose objective=regression"
    )


def _cap_rows(labels: np.ndarray, request: LoadRequest, name: str) -> np.ndarray | None:
    return cap_rows(labels, request.cap, request.seed, name)


def _taken(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """`x[rows]`, copied with all cores, because a domain at 224 pixels takes half a gigabyte."""
    out = np.empty((len(rows), *x.shape[1:]), x.dtype)

    def copy(part: slice) -> None:
        np.take(x, rows[part], axis=0, out=out[part], mode="clip")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(copy, (slice(start, start + BATCH) for start in range(0, len(rows), BATCH))))
    return out


def _samples(x: np.ndarray, y: np.ndarray, rows: np.ndarray | None) -> Samples:
    """Greyscale images keep one channel in memory and are viewed as three."""
    if rows is not None:
        x, y = _taken(x, rows), y[rows]
    inputs = torch.from_numpy(np.ascontiguousarray(x) if not isinstance(x, np.memmap) else x)
    if inputs.ndim == 4 and inputs.shape[1] == 1:
        inputs = inputs.expand(-1, 3, -1, -1)
    return Samples(
        inputs, torch.from_numpy(np.ascontiguousarray(y, dtype=np.int64 if y.dtype.kind in "iu" else np.float32))
    )
