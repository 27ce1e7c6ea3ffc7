"""A figure of a stream of domains: a row per client, a column per round, coloured by domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedspecial.core.colours import distinct_colours
from fedspecial.data.stream_schedule import StreamSchedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NAMED = 12
"""With more visits, their names would not fit above the figure."""


def draw_stream(schedule: StreamSchedule, domains: Sequence[str], title: str = "") -> Figure:
    """In a blend, the colour of a cell is the mixture of the two domains. Dashed lines are the announced borders."""
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    colours = np.array([to_rgb(colour) for colour in distinct_colours(len(domains))])
    cells = np.zeros((schedule.clients, schedule.num_visits * schedule.rounds, 3))
    for client in range(cells.shape[0]):
        for time in range(cells.shape[1]):
            for share in schedule.shares(client, time):
                cells[client, time] += share.part * colours[schedule.domain_of(share.visit) - 1]
    height = 1.6 + 0.24 * min(schedule.clients, 30)
    figure = Figure(figsize=(10, height), layout="constrained")
    axes = figure.add_subplot()
    extent = (0.5, cells.shape[1] + 0.5, schedule.clients + 0.5, 0.5)
    axes.imshow(cells, aspect="auto", interpolation="nearest", extent=extent)
    for border in schedule.borders:
        axes.axvline(border + 0.5, color="black", linestyle="--", linewidth=1)
    axes.set(xlabel="round of the run", ylabel="client")
    axes.set_yticks(range(1, schedule.clients + 1, max(1, schedule.clients // 10)))
    if schedule.num_visits <= MOST_NAMED:
        above = axes.secondary_xaxis("top")
        middles = [(visit + 0.5) * schedule.rounds + 0.5 for visit in range(schedule.num_visits)]
        above.set_xticks(middles, [domains[number - 1] for number in schedule.visited], fontsize=8)
        above.tick_params(length=0)
    handles = [Patch(color=colour) for colour in colours]
    figure.legend(handles, domains, loc="outside lower center", ncols=min(8, len(domains)), frameon=False)
    width = f" over {schedule.width} rounds" if schedule.width else ""
    axes.set_title(f"{title}: stream={schedule.kind}{width}; dashed: announced borders", fontsize=10)
    return figure
