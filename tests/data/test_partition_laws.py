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
@settings(max_examples=40)
def test_every_row_has_one_owner(kind: str, seed: int, rows: int, classes: int, clients: int, alpha: float) -> None:
    parts = partition_of(kind, labels_of(seed, rows, classes), clients, alpha, 0)
    owned = np.concatenate([parts.rows(client) for client in range(clients)])
    assert parts.num_clients == clients
    assert np.array_equal(np.sort(owned), np.arange(rows))
    assert parts.sizes.sum() == rows


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 99), alpha=ALPHAS)
@settings(max_examples=15)
def test_the_random_stream_determines_the_partition(kind: str, seed: int, alpha: float) -> None:
    labels = labels_of(1, 120, 5)
    first, second = (partition_of(kind, labels, 6, alpha, 0, seed) for _ in range(2))
    assert np.array_equal(first.order, second.order)
    assert np.array_equal(first.bounds, second.bounds)


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 50), least=st.integers(1, 12), alpha=st.floats(0.3, 10))
@settings(max_examples=20)
def test_every_client_has_at_least_the_minimum(kind: str, seed: int, least: int, alpha: float) -> None:
    assert partition_of(kind, labels_of(seed, 240, 4), 6, alpha, least, seed).sizes.min() >= least


@pytest.mark.parametrize("kind", KINDS)
def test_too_few_rows_are_refused_with_the_name_of_the_setting(kind: str) -> None:
    with pytest.raises(
        InputError, match="min_per_client=10: 30 rows are too few for clients=4; it needs at most clients=3"
    ):
        partition_of(kind, labels_of(0, 30, 3), 4, 1.0, 10)


def test_an_impossible_partition_is_not_drawn() -> None:
    """Neither time nor the advice to change alpha is wasted on it."""
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="it needs more than 5 rows"):
        make_partition("dirichlet", labels_of(0, 5, 2), 2, alpha=1.0, min_per_client=10, rng=rng)
    assert rng.random() == np.random.default_rng(0).random()


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


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_the_shares_of_a_class_are_a_symmetric_dirichlet_draw(alpha: float) -> None:
    """The share s of a class that one of M clients has, s ~ Dirichlet(α, …, α), drawn anew for every class:

    mean 1/M, variance v = (1/M)(1 − 1/M)/(Mα + 1), and no covariance between two classes at the same client.
    M = 4: v = 1/16 at α = ½ and 1/48 at α = 2, which is what α·M or α/M in place of α would give for the other one.

    Bounds of five standard errors over 4,000 draws. Mean: √v/√4000. Variance: (s − ¼)² is between 0 and 9/16, so its
    variance is at most (9/16 − v)·v. Covariance: the product of two independent deviations has variance v².
    """
    rng, draws = np.random.default_rng(0), 4000
    labels = np.repeat([0, 1], 200)
    counts = np.empty((draws, 2))
    for draw in range(draws):
        rows = make_partition("dirichlet", labels, 4, alpha=alpha, min_per_client=0, rng=rng).rows(1)
        counts[draw] = np.bincount(labels[rows], minlength=2)
    deviation = counts / 200 - 1 / 4
    v = (1 / 4) * (3 / 4) / (4 * alpha + 1)
    errors = 5 / np.sqrt(draws)
    assert np.abs(deviation.mean(axis=0)).max() < errors * np.sqrt(v)
    assert np.abs((deviation**2).mean(axis=0) - v).max() < errors * np.sqrt((9 / 16 - v) * v)
    assert abs(deviation.prod(axis=1).mean()) < errors * v


@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("kind", ["dirichlet", "quantity"])
def test_no_position_in_the_list_of_clients_gets_more_rows(kind: str, least: int) -> None:
    """Ten rows for four clients with almost equal shares: each of them gets 2.5 rows on average.

    At α = 10⁶ the standard deviation of a share is √(¼·¾/(4·10⁶ + 1)) = 0.0002, so a count is 2 or 3 and its standard
    deviation at most ½. The mean of 2,000 draws is then within 5·½/√2000 = 0.056 of 2.5. Rounding the cumulative shares
    down would give the first client 2 rows and the last one 3.
    """
    rng = np.random.default_rng(0)
    labels = np.zeros(10, dtype=np.int64)
    sizes = [make_partition(kind, labels, 4, alpha=1e6, min_per_client=least, rng=rng).sizes for _ in range(2000)]
    assert np.all(np.sum(sizes, axis=1) == 10)
    assert np.mean(sizes, axis=0) == pytest.approx([2.5] * 4, abs=0.056)


@given(seed=st.integers(0, 99), clients=st.integers(1, 9), total=st.integers(0, 60), alpha=ALPHAS)
@settings(max_examples=40)
def test_the_expected_count_is_the_share(seed: int, clients: int, total: int, alpha: float) -> None:
    """The mean of ⌊c + u⌋ over u = 0, 1/n, … is c up to 1/n, so that of a difference is right up to 2/n."""
    shares = np.random.default_rng(seed).dirichlet(np.full(clients, alpha))
    counts = [partition._counts(shares, total, u) for u in np.arange(1000) / 1000]
    assert np.all(np.sum(counts, axis=1) == total)
    assert np.min(counts) >= 0
    assert np.abs(np.array(counts) - shares * total).max() < 1 + 1e-9
    assert np.mean(counts, axis=0) == pytest.approx(shares * total, abs=2e-3)


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
        cuts = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(labels) + rng.random()
        parts = np.split(rng.permutation(len(labels)), cuts.astype(np.int64))
    elif kind == "shards":
        order = rng.permutation(len(labels))
        pieces = np.array_split(order[np.argsort(labels[order], kind="stable")], 2 * clients)
        drawn = rng.permutation(2 * clients).reshape(clients, 2)
        parts = [np.concatenate([pieces[first], pieces[second]]) for first, second in drawn]
    else:
        by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        shares = rng.dirichlet(np.full(clients, alpha), size=len(by_class))
        offsets = rng.random(len(by_class))
        split = [
            np.split(rng.permutation(rows), (np.cumsum(share)[:-1] * len(rows) + offset).astype(np.int64))
            for share, rows, offset in zip(shares, by_class, offsets, strict=True)
        ]
        parts = [np.concatenate(part) for part in zip(*split, strict=True)]
    return [np.sort(part) for part in parts]


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 99), rows=st.integers(40, 300), clients=st.integers(1, 20), alpha=ALPHAS)
@settings(max_examples=30)
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
