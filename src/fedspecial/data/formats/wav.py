"""WAV files with uncompressed samples (PCM, 8, 16 or 32 bits), and their log-mel spectrograms as images.

A spectrogram has a column for each moment and a row for each band of frequencies, low ones at the bottom. The bands are
equally wide on the mel scale, m = 2595·log₁₀(1 + f/700), on which equal steps sound equally far apart. The value is the
energy in decibels below the loudest point of the same recording. So no statistics of other recordings are needed, and
how loud a speaker talks or how far away the microphone is makes no difference.
"""

from __future__ import annotations

import wave
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedspecial.errors import InputError

DECIBELS = 80.0
"""What is this much quieter than the loudest point of a recording is black."""
FFT = 1024


def read(path: Path) -> tuple[np.ndarray, int]:
    """The samples (−1…1, the mean over the channels) and how many there are per second."""
    try:
        with wave.open(str(path), "rb") as file:
            rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
            frames, raw = file.getnframes(), file.readframes(file.getnframes())
    except FileNotFoundError:
        raise InputError("missing") from None
    except (OSError, EOFError, wave.Error) as error:
        raise InputError(f"not a readable WAV file ({error or 'cut off'})") from None
    if width not in (1, 2, 4):
        raise InputError(f"{8 * width} bits per sample, expected 8, 16 or 32")
    if len(raw) != frames * channels * width:
        raise InputError(f"not a readable WAV file, cut off after {len(raw) // (channels * width)} of {frames} samples")
    if frames == 0:
        raise InputError("contains no samples")
    values = np.frombuffer(raw, {1: "u1", 2: "<i2", 4: "<i4"}[width]).astype(np.float64)
    if width == 1:
        values -= 128
    return values.reshape(-1, channels).mean(1) / 2 ** (8 * width - 1), rate


def spectrogram(samples: np.ndarray, rate: int, size: int, seconds: float = 1.0) -> np.ndarray:
    """The log-mel spectrogram as an image (size, size) of uint8: `size` bands by `size` moments over `seconds`.

    A shorter recording is in the middle of silence; of a longer one the loudest part is used. The windows (Hann) of
    neighbouring moments overlap by half.
    """
    hop = round(seconds * rate / size)
    window = np.hanning(2 * hop + 2)[1:-1]
    if len(window) > FFT:
        raise InputError(f"image_size={size}: too small for {rate} samples per second")
    length = (size + 1) * hop
    spare = length - len(samples)
    if spare >= 0:
        samples = np.pad(samples, (spare // 2, spare - spare // 2))
    else:
        sums = np.concatenate([[0.0], np.cumsum(samples**2)])
        samples = samples[int(np.argmax(sums[length:] - sums[:-length])) :][:length]
    frames = np.lib.stride_tricks.sliding_window_view(samples, 2 * hop)[::hop]
    energy = np.abs(np.fft.rfft(frames * window, FFT)) ** 2 @ _mel_filters(size, rate).T
    loudest = energy.max()
    if loudest <= 0:
        return np.zeros((size, size), np.uint8)
    decibels = 10 * np.log10(np.maximum(energy / loudest, 10 ** (-DECIBELS / 10)))
    image: np.ndarray = np.rint(255 * (1 + decibels / DECIBELS)).astype(np.uint8)
    return image.T[::-1]


@lru_cache
def _mel_filters(bands: int, rate: int) -> np.ndarray:
    """(bands, FFT/2 + 1): triangles between neighbouring centres, which are equally spaced on the mel scale."""
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + rate / 2 / 700), bands + 2) / 2595) - 1)
    frequency = np.fft.rfftfreq(FFT, 1 / rate)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    filters: np.ndarray = np.minimum((frequency - low) / (centre - low), (high - frequency) / (high - centre)).clip(0)
    return filters
