"""The colours of domains can be told apart by readers who do not see red or green."""

from __future__ import annotations

import numpy as np
import pytest

from fedspecial.core.colours import PALETTE, distinct_colours
from fedspecial.data.stream_preview import draw_stream
from fedspecial.data.stream_schedule import StreamSchedule

# Machado, Oliveira and Fernandes (2009), severity 1, for linear RGB.
SEEN_AS = {
    "everybody": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = TO_XYZ.sum(axis=1)


def lab(colour: str, matrix: object) -> np.ndarray:
    """The CIELAB coordinates of a colour as it is seen with this matrix."""
    value = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    x = TO_XYZ @ np.clip(np.asarray(matrix) @ linear, 0, 1) / WHITE
    f = np.where(x > 216 / 24389, np.cbrt(x), (24389 / 27 * x + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("who", SEEN_AS)
def test_neighbours_differ_clearly_and_all_of_the_first_eight_differ(who: str) -> None:
    """A difference of 2.3 can just be seen."""
    seen = [lab(colour, SEEN_AS[who]) for colour in PALETTE]
    for one in range(len(seen)):
        for other in range(one):
            distance = float(np.linalg.norm(seen[one] - seen[other]))
            assert distance > (30 if one - other == 1 else 15), (PALETTE[one], PALETTE[other])


def test_more_than_eight_things_have_different_colours() -> None:
    assert len(set(distinct_colours(20))) == 20
    assert distinct_colours(20)[:8] == list(PALETTE)


def test_a_picture_of_a_stream_has_a_cell_per_client_and_round_in_the_colour_of_its_domain() -> None:
    schedule = StreamSchedule(2, rounds=4, clients=3, kind="blended", width=2)
    axes = draw_stream(schedule, ("paper", "neon")).axes[0]
    cells = axes.images[0].get_array()
    assert cells is not None
    assert cells.shape == (3, 8, 3)
    first, second = (
        np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]) for colour in distinct_colours(2)
    )
    for time in range(8):
        mixed = sum(share.part * (first, second)[share.visit - 1] for share in schedule.shares(0, time))
        assert np.allclose(cells[0, time], mixed)
    assert np.allclose(cells[:, 0], first)
    assert np.allclose(cells[:, -1], second)
