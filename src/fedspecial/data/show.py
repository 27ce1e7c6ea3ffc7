"""What a person looks at before training: samples of each domain and class, and who would hold what."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedspecial.data.benchmark import Benchmark, Domain
from fedspecial.data.partition import Partition

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_CLASSES = 10
"""More columns than this are too small to see; further classes are left out of the samples, not of the bars."""

Texts = Sequence[Sequence[str]]


def picture(
    benchmark: Benchmark,
    partitions: Sequence[Partition],
    *,
    title: str = "",
    texts: Sequence[Texts] | None = None,
    features: Sequence[str] = (),
) -> Figure:
    """A row per domain: on the left samples of each class, on the right the label histogram per client.

    `texts` gives, by domain and class, one text to print, since hashed words can't be turned back.
    """
    from matplotlib.figure import Figure

    rows = len(benchmark.domains)
    colours = _colours(len(benchmark.classes))
    height = 1.9 if benchmark.kind != "text" else 2.4
    figure = Figure(figsize=(13, height * rows + 0.9), layout="constrained")
    grid = figure.add_gridspec(rows, 2, width_ratios=(2.2, 1))
    for row, (domain, partition) in enumerate(zip(benchmark.domains, partitions, strict=True)):
        left, right = figure.add_subplot(grid[row, 0]), figure.add_subplot(grid[row, 1])
        left.set_ylabel(domain.name, fontsize=12, fontweight="bold")
        if benchmark.kind == "image":
            _images(left, benchmark, domain, row == 0)
        elif texts is not None:
            _texts(left, benchmark, texts[row])
        else:
            _means(left, benchmark, domain, features, colours)
        _bars(right, benchmark, domain, partition, colours, row == rows - 1)
    if len(benchmark.classes) <= MAX_CLASSES:
        handles = [_patch(colour) for colour in colours]
        figure.legend(handles, benchmark.classes, loc="outside lower center", ncols=len(colours), frameon=False)
    if title:
        figure.suptitle(title, fontsize=13)
    return figure


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def first_of_each(domain: Domain, labels: Sequence[int]) -> list[int | None]:
    """A training row of each class, from the middle of its rows: the first ones are often the odd ones."""
    y = domain.train.y.numpy()
    found: list[int | None] = []
    for label in labels:
        rows = np.flatnonzero(y == label)
        found.append(int(rows[len(rows) // 2]) if len(rows) else None)
    return found


def _shown_labels(benchmark: Benchmark, domain: Domain) -> list[int]:
    present = sorted(set(domain.train.y.tolist()))
    return (
        present[:MAX_CLASSES] if benchmark.incremental == "class" else list(range(len(benchmark.classes)))[:MAX_CLASSES]
    )


def _images(axes: Axes, benchmark: Benchmark, domain: Domain, first: bool) -> None:
    """One strip, a sample a class, with a thin gap between them."""
    labels = _shown_labels(benchmark, domain)
    height, width = benchmark.input_shape[1:]
    gap = max(width // 32, 1)
    strip = np.full((height, (width + gap) * len(labels) - gap, 3), 255, np.uint8)
    for column, row in enumerate(first_of_each(domain, labels)):
        if row is not None:
            image = domain.train.x[row].expand(3, -1, -1).permute(1, 2, 0).numpy()
            strip[:, column * (width + gap) : column * (width + gap) + width] = image
    axes.imshow(strip, interpolation="nearest" if height <= 32 else "antialiased")
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    if first or benchmark.incremental == "class":
        axes.xaxis.tick_top()
        centres = [column * (width + gap) + width / 2 for column in range(len(labels))]
        names = [textwrap.shorten(benchmark.classes[label].replace("_", " "), 14, placeholder="…") for label in labels]
        axes.set_xticks(centres, names, fontsize=8)
        axes.tick_params(length=0)
    else:
        axes.set_xticks([])


def _texts(axes: Axes, benchmark: Benchmark, texts: Texts) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    for number, (name, parts) in enumerate(zip(benchmark.classes, texts, strict=True)):
        body = " ‖ ".join(" ".join(part.split()) for part in parts)
        lines = textwrap.fill(textwrap.shorten(body, 330, placeholder=" …"), 112)
        axes.text(
            0.01, 0.97 - number / len(benchmark.classes), f"{name}\n{lines}",
            transform=axes.transAxes, va="top", fontsize=8, parse_math=False,
        )  # fmt: skip


def _means(axes: Axes, benchmark: Benchmark, domain: Domain, features: Sequence[str], colours: Sequence[Any]) -> None:
    """A table has no look; the mean of each column by class is the nearest to one. Missing values are left out."""
    x, y = domain.train.x.numpy(), domain.train.y.numpy()
    width = 0.8 / len(benchmark.classes)
    for label, colour in enumerate(colours):
        rows = x[y == label]
        known = np.maximum((~np.isnan(rows)).sum(axis=0), 1)
        means = np.nan_to_num(rows).sum(axis=0) / known
        axes.bar(np.arange(x.shape[1]) + (label + 0.5) * width - 0.4, means, width, color=colour)
    names = list(features) if len(features) == x.shape[1] else [str(index) for index in range(x.shape[1])]
    axes.set_xticks(range(x.shape[1]), names, rotation=60, fontsize=7, ha="right")
    axes.axhline(0, color="0.5", linewidth=0.6)
    axes.tick_params(axis="y", labelsize=7)


def _bars(
    axes: Axes, benchmark: Benchmark, domain: Domain, partition: Partition, colours: Sequence[Any], last: bool
) -> None:
    """Stacked: how many training samples of each class a client holds."""
    y = domain.train.y.numpy()
    classes = len(benchmark.classes)
    counts = np.array(
        [np.bincount(y[partition.rows(client)], minlength=classes) for client in range(partition.num_clients)]
    )
    base = np.zeros(partition.num_clients)
    places = np.arange(1, partition.num_clients + 1)
    for label in np.flatnonzero(counts.sum(axis=0)).tolist():
        axes.bar(places, counts[:, label], bottom=base, color=colours[label], width=0.85)
        base += counts[:, label]
    axes.set_xticks(places if len(places) <= 20 else places[:: len(places) // 10])
    axes.tick_params(labelsize=8)
    axes.set_ylabel("samples", fontsize=8)
    if last:
        axes.set_xlabel("client", fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _colours(count: int) -> list[Any]:
    from matplotlib import colormaps

    if count <= MAX_CLASSES:
        return [colormaps["tab10"](index) for index in range(count)]
    return [colormaps["turbo"](index / (count - 1)) for index in range(count)]


def _patch(colour: Any) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=colour)
