"""Every partition gives each row to exactly one client and is determined by its random stream."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspecial.data import partition
from fedspecial.data.partition import Partition, make_partition
from fedspecial.errors import InputError

KINDS = [kind for kind in partition.KINDS if kind != "sites"]
ALPHAS = st.floats(0.05, 100)


def labels_of(seed: int, rows: int, classes: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, rows)


def partition_of(kind: str, labels: np.ndarray, clients: int, alpha: float, least: int, seed: int = 0) -> Partition:
    return make_partition(kind, labels, clients, alpha=alpha, min_per_client=least, rng=np.random.default_rng(seed))


@pytest.mark.parametrize("kind", KINDS)
@given(
    seed=st.integers(0, 99),
    rows=st.integers(40, 300),
    classes=st.integers(1, 12),
    clients=st.integers(1, 8),
    alpha=ALPHAS,
)
@settings(deadline=None, max_examples=40)
def test_every_row_has_one_owner(kind: str, seed: int, rows: int, classes: int, clients: int, alpha: float) -> None:
    parts = partition_of(kind, labels_of(seed, rows, classes), clients, alpha, 0)
    owned = np.concatenate([parts.rows(client) for client in range(clients)])
    assert parts.num_clients == clients
    assert np.array_equal(np.sort(owned), np.arange(rows))
    assert parts.sizes.sum() == rows


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 99), alpha=ALPHAS)
@settings(deadline=None, max_examples=15)
def test_the_random_stream_determines_the_partition(kind: str, seed: int, alpha: float) -> None:
    labels = labels_of(1, 120, 5)
    first, second = (partition_of(kind, labels, 6, alpha, 0, seed) for _ in range(2))
    assert np.array_equal(first.order, second.order)
    assert np.array_equal(first.bounds, second.bounds)


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 50), least=st.integers(1, 12), alpha=st.floats(0.3, 10))
@settings(deadline=None, max_examples=20)
def test_every_client_has_at_least_the_minimum(kind: str, seed: int, least: int, alpha: float) -> None:
    assert partition_of(kind, labels_of(seed, 240, 4), 6, alpha, least, seed).sizes.min() >= least


@pytest.mark.parametrize("kind", KINDS)
def test_too_few_rows_are_refused_with_the_name_of_the_setting(kind: str) -> None:
    with pytest.raises(InputError, match="min_per_client=10"):
        partition_of(kind, labels_of(0, 30, 3), 4, 1.0, 10)


def test_iid_sizes_differ_by_one_at_most() -> None:
    sizes = partition_of("iid", labels_of(0, 103, 3), 8, 1, 0).sizes
    assert sizes.max() - sizes.min() <= 1


def test_two_shards_give_each_client_few_classes() -> None:
    labels = np.repeat(np.arange(10), 40)
    parts = make_partition("shards", labels, 10, shards_per_client=2, rng=np.random.default_rng(0))
    assert max(len(np.unique(labels[parts.rows(client)])) for client in range(10)) <= 4


def test_quantity_skews_sizes_and_not_classes() -> None:
    labels = np.repeat(np.arange(4), 1000)
    parts = make_partition("quantity", labels, 5, alpha=0.3, min_per_client=200, rng=np.random.default_rng(1))
    assert parts.sizes.max() > 2 * parts.sizes.min()
    for client in range(5):
        share = np.bincount(labels[parts.rows(client)], minlength=4) / parts.sizes[client]
        assert abs(share - 0.25).max() < 0.1


def test_a_small_alpha_gives_each_client_few_classes() -> None:
    labels = np.repeat(np.arange(10), 100)
    skews = []
    for alpha in (0.1, 100.0):
        parts = partition_of("dirichlet", labels, 8, alpha, 5)
        shares = [np.bincount(labels[parts.rows(client)], minlength=10) / parts.sizes[client] for client in range(8)]
        skews.append(np.mean([share.max() for share in shares]))
    assert skews[0] > 2 * skews[1]


def test_given_sites_are_used_whatever_the_partition_is() -> None:
    sites = (np.array([0, 3]), np.array([], np.int64), np.array([1, 2, 4]))
    parts = make_partition("dirichlet", np.zeros(5), 8, sites=sites, rng=np.random.default_rng(0))
    assert [parts.rows(client).tolist() for client in range(3)] == [[0, 3], [], [1, 2, 4]]


def test_sites_that_share_a_row_are_refused() -> None:
    with pytest.raises(InputError, match="do not form a partition"):
        partition.given([np.array([0, 1]), np.array([1, 2])], 3)


def test_an_unknown_kind_is_refused_with_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean 'dirichlet'"):
        partition_of("dirichlett", np.zeros(9), 2, 1, 0)


def one_array_per_client(kind: str, labels: np.ndarray, clients: int, alpha: float, seed: int) -> list[np.ndarray]:
    """The partitions, written with a list of arrays, which would need much memory for many clients."""
    rng = np.random.default_rng(seed)
    if kind == "iid":
        parts = np.array_split(rng.permutation(len(labels)), clients)
    elif kind == "quantity":
        cuts = (np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(labels)).astype(np.int64)
        parts = np.split(rng.permutation(len(labels)), cuts)
    elif kind == "shards":
        order = rng.permutation(len(labels))
        pieces = np.array_split(order[np.argsort(labels[order], kind="stable")], 2 * clients)
        drawn = rng.permutation(2 * clients).reshape(clients, 2)
        parts = [np.concatenate([pieces[first], pieces[second]]) for first, second in drawn]
    else:
        by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        shares = rng.dirichlet(np.full(clients, alpha), size=len(by_class))
        split = [
            np.split(rng.permutation(rows), (np.cumsum(share)[:-1] * len(rows)).astype(np.int64))
            for share, rows in zip(shares, by_class, strict=True)
        ]
        parts = [np.concatenate(part) for part in zip(*split, strict=True)]
    return [np.sort(part) for part in parts]


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 99), rows=st.integers(40, 300), clients=st.integers(1, 20), alpha=ALPHAS)
@settings(deadline=None, max_examples=30)
def test_every_client_has_the_rows_that_were_drawn_for_it(
    kind: str, seed: int, rows: int, clients: int, alpha: float
) -> None:
    labels = labels_of(seed, rows, 5)
    found = partition_of(kind, labels, clients, alpha, 0, seed)
    for client, expected in enumerate(one_array_per_client(kind, labels, clients, alpha, seed)):
        assert np.array_equal(found.rows(client), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_of_all_clients_are_parts_of_one_array(kind: str) -> None:
    parts = partition_of(kind, labels_of(0, 200, 4), 10, 1.0, 0)
    assert all(parts.rows(client).base is parts.order for client in range(10))


def test_a_partition_of_many_clients_needs_a_few_numbers_per_row_and_client() -> None:
    clients = 50_000
    labels = np.zeros(clients, dtype=np.int64)
    tracemalloc.start()
    try:
        partition_of("iid", labels, clients, 1.0, 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * 8 * clients
