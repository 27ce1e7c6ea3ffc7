"""A figure to look at before training: samples of each domain and class, and the labels of each client."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedspecial.core.colours import distinct_colours
from fedspecial.core.figure_text import show_dollars
from fedspecial.data.absent_classes import absent_classes
from fedspecial.data.benchmark import Benchmark
from fedspecial.data.partition import Partition
from fedspecial.data.samples import Domain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_CLASSES = 10
"""The figure shows samples of at most this many classes; the bars show all classes."""

MAX_FEATURES = 40
"""At most this many columns of a table are named below the bars."""

Texts = Sequence[Sequence[str]]


def draw(
    benchmark: Benchmark,
    partitions: Sequence[Partition],
    *,
    title: str = "",
    texts: Sequence[Texts] | None = None,
    features: Sequence[str] = (),
) -> Figure:
    """A row per domain: on the left samples of each class, on the right the label histogram per client.

    texts: one text per domain and class, since token ids cannot be turned back into words
    """
    from matplotlib.figure import Figure

    rows = len(benchmark.domains)
    colours = _colours(len(benchmark.classes))
    figure = Figure(figsize=(13, 1.9 * rows + 0.9), layout="constrained")
    grid = figure.add_gridspec(rows, 2, width_ratios=(2.2, 1))
    for row, (domain, partition) in enumerate(zip(benchmark.domains, partitions, strict=True)):
        left, right = figure.add_subplot(grid[row, 0]), figure.add_subplot(grid[row, 1])
        left.set_ylabel(domain.name, fontsize=12, fontweight="bold")
        if absent := absent_classes(benchmark, domain):
            right.set_title(f"lacks {', '.join(absent)}", fontsize=8, loc="left")
        if benchmark.kind == "image":
            _images(left, benchmark, domain, row == 0)
        elif texts is not None:
            _texts(left, benchmark, texts[row], colours)
        else:
            _means(left, benchmark, domain, features if row == rows - 1 else (), colours)
        _bars(right, benchmark, domain, partition, colours, row == rows - 1)
    if len(benchmark.classes) <= MAX_CLASSES:
        handles = [_patch(colour) for colour in colours]
        figure.legend(handles, benchmark.classes, loc="outside lower center", ncols=len(colours), frameon=False)
    if title:
        figure.suptitle(title, fontsize=13)
    return figure


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    show_dollars(figure)
    figure.savefig(path, dpi=110)


def rows_to_show(domain: Domain, labels: Sequence[int], count: int) -> list[list[int]]:
    """`count` training rows of each class, spread over its rows, since the first ones are often untypical."""
    y = domain.train.y.numpy()
    found = []
    for label in labels:
        rows = np.flatnonzero(y == label)
        positions = ((np.arange(count) + 0.5) / count * len(rows)).astype(np.int64)
        found.append(rows[np.unique(positions)].tolist() if len(rows) else [])
    return found


def _shown_labels(benchmark: Benchmark, domain: Domain) -> list[int]:
    if benchmark.incremental == "class":
        return sorted(set(domain.train.y.tolist()))[:MAX_CLASSES]
    return list(range(len(benchmark.classes)))[:MAX_CLASSES]


def _images(axes: Axes, benchmark: Benchmark, domain: Domain, first: bool) -> None:
    """One column per class, with a thin gap between images; two lines of images if the columns are narrow."""
    labels = _shown_labels(benchmark, domain)
    lines = 2 if len(labels) > 7 else 1
    height, width = benchmark.input_shape[1:]
    gap = max(width // 32, 1)
    tall, wide = height + gap, width + gap
    sheet = np.full((tall * lines - gap, wide * len(labels) - gap, 3), 255, np.uint8)
    for column, rows in enumerate(rows_to_show(domain, labels, lines)):
        for line, row in enumerate(rows):
            image = domain.train.x[row].expand(3, -1, -1).permute(1, 2, 0).numpy()
            sheet[line * tall : line * tall + height, column * wide : column * wide + width] = image
    axes.imshow(sheet, interpolation="nearest" if height <= 32 else "antialiased")
    _bare(axes)
    if first or benchmark.incremental == "class":
        axes.xaxis.tick_top()
        names = [textwrap.shorten(benchmark.classes[label].replace("_", " "), 14, placeholder="…") for label in labels]
        axes.set_xticks([column * wide + width / 2 for column in range(len(labels))], names, fontsize=8)
        axes.tick_params(length=0)


def _texts(axes: Axes, benchmark: Benchmark, texts: Texts, colours: Sequence[Any]) -> None:
    _bare(axes)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    for number, (name, parts) in enumerate(zip(benchmark.classes, texts, strict=True)):
        body = " ‖ ".join(" ".join(part.split()) for part in parts)
        lines = textwrap.fill(textwrap.shorten(body, 360, placeholder=" …"), 125)
        top = 0.98 - number / len(benchmark.classes)
        axes.text(0.01, top, name, va="top", fontsize=9, fontweight="bold", color=colours[number])
        axes.text(0.01, top - 0.11, lines, va="top", fontsize=8, parse_math=False)


def _bare(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _means(axes: Axes, benchmark: Benchmark, domain: Domain, features: Sequence[str], colours: Sequence[Any]) -> None:
    """A table cannot be shown as images, so the mean of each column by class is drawn, without missing values."""
    x, y = domain.train.x.numpy(), domain.train.y.numpy()
    width = 0.8 / len(benchmark.classes)
    for label, colour in enumerate(colours):
        rows = x[y == label]
        known = np.maximum((~np.isnan(rows)).sum(axis=0), 1)
        means = np.nan_to_num(rows).sum(axis=0) / known
        axes.bar(np.arange(x.shape[1]) + (label + 0.5) * width - 0.4, means, width, color=colour)
    every = -(-x.shape[1] // MAX_FEATURES)
    named = range(0, x.shape[1], every)
    axes.set_xticks(named, features[::every] or [""] * len(named), rotation=60, fontsize=7, ha="right")
    axes.axhline(0, color="0.5", linewidth=0.6)
    axes.tick_params(axis="y", labelsize=7)


def _bars(
    axes: Axes, benchmark: Benchmark, domain: Domain, partition: Partition, colours: Sequence[Any], last: bool
) -> None:
    """Stacked bars: the number of training samples of each class at each client."""
    y = domain.train.y.numpy()
    classes = len(benchmark.classes)
    counts = np.array(
        [np.bincount(y[partition.rows(client)], minlength=classes) for client in range(partition.num_clients)]
    )
    base = np.zeros(partition.num_clients)
    clients = np.arange(1, partition.num_clients + 1)
    for label in np.flatnonzero(counts.sum(axis=0)).tolist():
        axes.bar(clients, counts[:, label], bottom=base, color=colours[label], width=0.85)
        base += counts[:, label]
    axes.set_xticks(clients if len(clients) <= 20 else clients[:: len(clients) // 10])
    axes.tick_params(labelsize=8)
    axes.set_ylabel("samples", fontsize=8)
    if last:
        axes.set_xlabel("client", fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _colours(count: int) -> list[Any]:
    from matplotlib import colormaps

    if count <= MAX_CLASSES:
        return list(distinct_colours(count))
    return [colormaps["turbo"](index / (count - 1)) for index in range(count)]


def _patch(colour: Any) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=colour)
