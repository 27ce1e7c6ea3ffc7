"""digits-shift: handwritten digits in four visual styles, rendered from scikit-learn's data. Nothing to download.

`load` builds the four domains from `sklearn.datasets.load_digits` (1,797 digits of 8×8 pixels) and the two
photographs of `load_sample_images`. Every digit appears once in every domain, each time rotated, slanted, scaled
and shifted slightly differently. A fixed quarter of each digit's examples is reserved for testing, the same
examples in all domains, so no test digit is seen during training in any domain.

How the preset (`presets/digits-shift.yaml`) was chosen, using only ``split="validation"``, which holds out a quarter of
the training digits and leaves the test digits untouched:

- Domains and their order: each domain differs from the previous one in what marks the digit (dark on light, a bright
  outline in the dark, a colour over a picture, texture alone), so that FedAvg forgets; chosen with seed 25.
- Rounds and learning rates: FedAvg learns every domain although γ_G falls to 1/4. Accuracy on the domain just learned,
  mean over seeds 25, 225, 2025: paper 94, neon 92, photo 91, hatch 87 %; mean BWT −31 points.
- λ: by the paper's two-stage sweep, 0 to 1 by 0.2, then by 0.05 between the two best, by mean ACC over these seeds.

  ==========  ====  ====  ====  ====  ====  ====  ====  ====  ====
  λ           0     0.2   0.25  0.3   0.35  0.4   0.6   0.8   1
  SPECIAL     67.7  74.0  75.1  74.8  73.9  73.2  67.2  60.7  55.9
  SPECIAL-C   67.7  68.9  67.8  68.3  68.2  67.9  67.7  66.4  66.6
  ==========  ====  ====  ====  ====  ====  ====  ====  ====  ====

  Hence λ = 0.25 for SPECIAL and 0.2 for SPECIAL-C. The regularisation has a price: at λ = 0.25 the accuracy on the
  domain just learned is 76 to 78 % from the second domain on, where FedAvg reaches 87 to 92 %. FedProx's μ is the
  usual 0.01 and was not tuned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedspecial.data.entry import Entry
from fedspecial.data.loading.request import LoadRequest
from fedspecial.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.samples import Domain

Array = NDArray[np.float32]
Split = Literal["test", "validation"]

SIZE = 32
MIDDLE = (SIZE - 1) / 2
ROW, COLUMN = (np.mgrid[:SIZE, :SIZE] - MIDDLE).astype(np.float32)
TEST_SHARE = 0.25
VALIDATION_SHARE = 0.25
RENDERING_SEED = 8832
LICENCE = "digits: UCI optical recognition of handwritten digits, CC BY 4.0; photographs: CC BY"


def load(*, domains: tuple[str, ...] | None = None, cap: int | None = None, split: Split = "test") -> Benchmark:
    """The benchmark. Its images do not depend on the seed of a run.

    domains: the domains to load, in order; None for all of them in the order of `DOMAINS`
    cap:     maximum number of training images per domain (the first `cap` images contain all digits equally often)
    split:   "test" evaluates on the test digits; "validation" trains on three quarters of the training digits and
             evaluates on the rest of them, so that hyper-parameters can be chosen without the test digits
    """
    import torch
    from sklearn.datasets import load_digits

    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.samples import Domain, Samples

    chosen = tuple(DOMAINS) if domains is None else tuple(domains)
    for name in chosen:
        if name not in DOMAINS:
            raise InputError(
                f"domains={name}: 'digits-shift' has no such domain{did_you_mean(name, DOMAINS)}; "
                f"known: {', '.join(DOMAINS)}"
            )
    if cap is not None and cap < 1:
        raise InputError(f"cap={cap}: must be at least 1")
    if split not in ("test", "validation"):
        raise InputError(f"split={split}: must be 'test' or 'validation'")
    pixels, labels = load_digits(return_X_y=True)
    digits = (pixels / 16).astype(np.float32).reshape(-1, 8, 8)
    train, test = split_rows(labels, split)
    y = torch.from_numpy(labels.astype(np.int64))

    def domain(name: str) -> Domain:
        rng = np.random.default_rng([RENDERING_SEED, list(DOMAINS).index(name)])
        images = DOMAINS[name](_strokes(digits, rng), rng)
        samples = Samples(torch.from_numpy((255 * images.clip(0, 1) + 0.5).astype(np.uint8)), y)
        return Domain(name, samples.take(train[:cap]), samples.take(test))

    return Benchmark(
        name="digits-shift",
        domains=tuple(domain(name) for name in chosen),
        classes=tuple(str(digit) for digit in range(10)),
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        licence=LICENCE,
    ).check()


def split_rows(labels: NDArray[Any], split: Split) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training and test rows, each digit in the same proportion in both; consecutive rows cycle through the digits."""
    rng = np.random.default_rng(RENDERING_SEED)
    rank = np.empty(len(labels), dtype=np.int64)
    share = np.empty(len(labels))
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        rank[rows] = np.arange(len(rows))
        share[rows] = rank[rows] / len(rows)
    order = np.lexsort((labels, rank))
    held = share[order] >= 1 - TEST_SHARE
    if split == "test":
        return order[~held], order[held]
    kept = share[order] < (1 - TEST_SHARE) * (1 - VALIDATION_SHARE)
    return order[kept], order[~kept & ~held]


def _strokes(digits: Array, rng: np.random.Generator) -> Array:
    """Ink intensity (0…1) at 32×32: each digit is enlarged, then rotated, slanted, scaled and shifted slightly."""
    angle, slant = _uniform(rng, -0.12, 0.12, len(digits)), _uniform(rng, -0.12, 0.12, len(digits))
    scale = _uniform(rng, 0.95, 1.15, len(digits))
    down, right = _uniform(rng, -1.5, 1.5, len(digits)), _uniform(rng, -1.5, 1.5, len(digits))
    v, u = (ROW - down) * scale, (COLUMN - right) * scale
    u += slant * v
    v, u = np.cos(angle) * v - np.sin(angle) * u, np.sin(angle) * v + np.cos(angle) * u
    ink = _interpolate(_enlarge(digits), v + MIDDLE, u + MIDDLE)
    sharp: Array = 1 / (1 + np.exp(-12 * (ink - 0.42)))
    return sharp


def _enlarge(digits: Array) -> Array:
    """From 8×8 to 32×32 by Keys' cubic interpolation; linear interpolation would leave the pixels visible."""
    centre = (np.arange(SIZE) + 0.5) / 4 - 0.5
    far = np.abs(centre[:, None] - np.arange(8))
    near = 1.5 * far**3 - 2.5 * far**2 + 1
    tail = -0.5 * far**3 + 2.5 * far**2 - 4 * far + 2
    return _filter(digits, np.where(far <= 1, near, np.where(far < 2, tail, 0)))


def _interpolate(images: Array, v: Array, u: Array) -> Array:
    """Bilinear values at the positions (v, u) of each image; zero outside the image."""
    side = SIZE + 2
    flat = np.pad(images, ((0, 0), (1, 1), (1, 1))).reshape(-1)
    v, u = (v + 1).clip(0, side - 1.001), (u + 1).clip(0, side - 1.001)
    top, left = v.astype(np.int32), u.astype(np.int32)
    dv, du = (v - top).astype(np.float32), (u - left).astype(np.float32)
    at = top * side + left + np.arange(len(images), dtype=np.int32)[:, None, None] * side**2
    upper = flat[at] * (1 - du) + flat[at + 1] * du
    lower = flat[at + side] * (1 - du) + flat[at + side + 1] * du
    mixed: Array = upper * (1 - dv) + lower * dv
    return mixed


def _blur(ink: Array, radius: float) -> Array:
    kernel = np.exp(-0.5 * ((np.arange(SIZE)[:, None] - np.arange(SIZE)) / radius) ** 2)
    return _filter(ink, kernel / kernel.sum(1, keepdims=True))


def _filter(images: Array, kernel: NDArray[np.float64]) -> Array:
    """The same kernel along the columns and along the rows."""
    kernel32: Array = kernel.astype(np.float32)
    filtered: Array = np.matmul(np.matmul(kernel32, images), kernel32.T).astype(np.float32, copy=False)
    return filtered


def _uniform(rng: np.random.Generator, low: float, high: float, count: int) -> Array:
    """One number per image, shaped to broadcast over its rows and columns."""
    return rng.uniform(low, high, (count, 1, 1)).astype(np.float32)


def _hues(rng: np.random.Generator, count: int) -> Array:
    """One saturated colour per image: (count, 3, 1, 1)."""
    phase = rng.uniform(0, 6, (count, 1)) + np.array([0, 4, 2])
    colour: Array = np.clip(np.abs(phase % 6 - 3) - 1, 0, 1).astype(np.float32)
    return colour[:, :, None, None]


def _colour(*rgb: float) -> Array:
    return np.array(rgb, dtype=np.float32).reshape(1, 3, 1, 1)


def _noise(rng: np.random.Generator, count: int) -> Array:
    return rng.random((count, 1, SIZE, SIZE), dtype=np.float32)


def _over(back: Array, front: Array, ink: Array) -> Array:
    """`front` where there is ink, `back` elsewhere."""
    mixed: Array = back + (front - back) * ink[:, None]
    return mixed


def _paper(ink: Array, rng: np.random.Generator) -> Array:
    """Dark ink on cream paper with a little grain."""
    paper = _colour(0.96, 0.93, 0.84) * (0.92 + 0.08 * _noise(rng, len(ink)))
    pen = _colour(0.05, 0.05, 0.25) + 0.12 * _hues(rng, len(ink))
    return _over(paper, pen, ink)


def _photo(ink: Array, rng: np.random.Generator) -> Array:
    """A bright colour over a section of a photograph."""
    from sklearn.datasets import load_sample_images

    shots = np.stack(load_sample_images().images).astype(np.float32)[:, :426] / 255
    halved = shots.reshape(len(shots), 213, 2, 320, 2, 3).mean((2, 4)).transpose(0, 3, 1, 2)
    windows = np.lib.stride_tricks.sliding_window_view(halved, (SIZE, SIZE), axis=(2, 3))
    which, top, left = (rng.integers(windows.shape[axis], size=len(ink)) for axis in (0, 2, 3))
    paint = 0.35 + 0.65 * _hues(rng, len(ink))
    back = windows[which, :, top, left].astype(np.float32) * np.float32(0.6)
    return _over(back, paint, ink)


def _neon(ink: Array, rng: np.random.Generator) -> Array:
    """A glowing outline of the digit on a dark background."""
    tube = _blur(4 * ink * (1 - ink), 0.5)
    light = _hues(rng, len(ink)) * (0.9 * _blur(tube, 2.5) + 0.8 * tube)[:, None]
    night: Array = _colour(0.03, 0.02, 0.08) + 0.04 * _noise(rng, len(ink))
    lit: Array = night + light + 0.35 * tube[:, None]
    return lit


def _hatch(ink: Array, rng: np.random.Generator) -> Array:
    """Stripes on a plain background that is as bright as their mean: only the texture shows the digit."""
    count = len(ink)
    angle, phase = _uniform(rng, 0, np.pi, count), _uniform(rng, 0, 2 * np.pi, count)
    along = (ROW * np.cos(angle) + COLUMN * np.sin(angle)) / _uniform(rng, 2.6, 3.6, count)
    wave = np.clip(2 * np.sin(2 * np.pi * along + phase), -1, 1)
    striped: Array = 0.425 + 0.15 * _hues(rng, count) + 0.5 * (wave * ink)[:, None]
    return striped


DOMAINS: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "paper": _paper,
    "neon": _neon,
    "photo": _photo,
    "hatch": _hatch,
}


def _load_request(request: LoadRequest) -> Benchmark:
    return load(domains=request.domains, cap=request.cap, split=request.options["split"])


ENTRY = Entry(
    name="digits-shift",
    title="scikit-learn's 8×8 digits in four styles rendered by the program; nothing to download",
    kind="image",
    domains=tuple(DOMAINS),
    classes=tuple("0123456789"),
    num_classes=10,
    licence=LICENCE,
    load=_load_request,
    options={"split": "test"},
    needs_data=False,
)
