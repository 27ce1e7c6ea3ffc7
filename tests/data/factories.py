"""Small files in the published formats, for machines without the data."""

from __future__ import annotations

import bz2
import gzip
import json
import struct
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

RNG = np.random.default_rng(3)
PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def labels(count: int, classes: int = 10) -> np.ndarray:
    return np.arange(count) % classes


def idx(folder: Path, part: str, count: int = 30) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    images = RNG.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    head = struct.pack(">IIII", 0x803, count, 28, 28)
    (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + images.tobytes()))
    head = struct.pack(">II", 0x801, count)
    body = labels(count).astype(np.uint8).tobytes()
    (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(head + body))


def libsvm(path: Path, count: int = 30) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for label in labels(count):
        values = RNG.uniform(-1, 1, 256).round(3)
        lines.append(f"{label + 1} " + " ".join(f"{i + 1}:{v}" for i, v in enumerate(values)))
    path.write_bytes(bz2.compress(("\n".join(lines) + "\n").encode()))


def mat(path: Path, count: int = 30) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    y = np.where(labels(count) == 0, 10, labels(count)).astype(np.uint8)[:, None]
    savemat(path, {"X": RNG.integers(0, 256, (32, 32, 3, count), dtype=np.uint8), "y": y})


def digit10(root: Path, count: int = 30) -> Path:
    libsvm(root / "USPS/usps.bz2", count)
    libsvm(root / "USPS/usps.t.bz2", 20)
    mat(root / "SVHN/train_32x32.mat", count)
    mat(root / "SVHN/test_32x32.mat", 20)
    for folder, train, test in (
        ("MNIST/raw", "train", "t10k"),
        ("FEMNIST-digits", "femnist-digits-train", "femnist-digits-test"),
        ("EMNIST/raw", "emnist-digits-train", "emnist-digits-test"),
    ):
        idx(root / folder, train, count)
        idx(root / folder, test, 20)
    return root


def image(path: Path, value: int, side: int = 20) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side, 3), value, np.uint8)).save(path)


def tree(root: Path, domains: Sequence[str], classes: Sequence[str], count: int = 10) -> Path:
    """Images of one grey value each, `count` per class, so that the grey value identifies the image."""
    for d, domain in enumerate(domains):
        for c, name in enumerate(classes):
            for number in range(count):
                image(root / domain / name / f"{number:03}.png", 20 * d + 30 * c + number)
    return root


def cifar(root: Path, per_class: int = 3) -> Path:
    folder = root / "cifar-100-binary"
    folder.mkdir(parents=True)
    (folder / "fine_label_names.txt").write_text("\n".join(f"class{n:02}" for n in range(100)) + "\n")
    for part, count in (("train", per_class), ("test", 1)):
        fine = RNG.permutation(np.repeat(np.arange(100), count)).astype(np.uint8)
        pixels = np.repeat(fine[:, None], 3072, axis=1)
        (folder / f"{part}.bin").write_bytes(np.concatenate([fine[:, None] // 5, fine[:, None], pixels], 1).tobytes())
    return root


def fdu(root: Path, names: Sequence[str] = ("books", "electronics", "dvd", "kitchen_housewares")) -> Path:
    (root / "FDU-MTL").mkdir(parents=True)
    for name in names:
        for part in ("train", "test"):
            lines = [f"{n % 2}\t{'good' if n % 2 else 'bad'} {name} number {n}" for n in range(20)]
            (root / f"FDU-MTL/{name}.task.{part}").write_text("\n".join(lines) + "\n")
    return root


def glue(root: Path) -> Path:
    rows = range(20)
    for folder in ("SST-2", "QQP", "QNLI", "MRPC"):
        (root / folder).mkdir(parents=True)
    for part in ("train", "dev"):
        sst = ["sentence\tlabel", *(f'a "quoted film {n} \t{n % 2}' for n in rows)]
        (root / f"SST-2/{part}.tsv").write_text("\n".join(sst) + "\n")
        qqp = ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"]
        qqp += [f"{n}\t1\t2\twhy {n}?\twhat {n}?\t{n % 2}" for n in rows]
        (root / f"QQP/{part}.tsv").write_text("\n".join(qqp) + "\n")
        qnli = ["index\tquestion\tsentence\tlabel"]
        qnli += [f"{n}\twho {n}?\tit {n}.\t{'entailment' if n % 2 else 'not_entailment'}" for n in rows]
        (root / f"QNLI/{part}.tsv").write_text("\n".join(qnli) + "\n")
    for part in ("train", "test"):
        mrpc = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *(f"{n % 2}\t1\t2\tone {n}\ttwo {n}" for n in rows)]
        (root / f"MRPC/msr_paraphrase_{part}.txt").write_text("\n".join(mrpc) + "\n", encoding="utf-8-sig")
    return root


def heart(root: Path, rows: int = 24) -> Path:
    """As UCI publishes it: no header, '?' for missing; one hospital never measured cholesterol (0)."""
    (root / "HeartDisease").mkdir(parents=True)
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        lines = []
        for n in range(rows):
            chol = 0 if name == "switzerland" else 200 + n
            thal = "?" if n % 3 else "7"
            lines.append(f"{40 + n},1,{n % 4 + 1},120,{chol},0,1,150,0,1.5,2,?,{thal},{n % 5 if n % 2 else 0}")
        (root / f"HeartDisease/processed.{name}.data").write_text("\n".join(lines) + "\n")
    return root


def gas_drift(root: Path, periods: Sequence[int] = (1, 2, 3), rows: int = 36) -> Path:
    """As UCI publishes it: `label 1:value …`; period 3 lacks the sixth gas, and later periods have drifted."""
    (root / "GasSensorDrift").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(5)
    for period in periods:
        lines = []
        for label in labels(rows, 5 if period == 3 else 6):
            values = 1000.0 * (label + 1) + 500 * period + rng.normal(0, 50, 128)
            lines.append(f"{label + 1} " + " ".join(f"{i + 1}:{v:.6f}" for i, v in enumerate(values)))
        (root / f"GasSensorDrift/batch{period}.dat").write_text("\n".join(lines) + " \n")
    return root


def tone(path: Path, hertz: float, seconds: float = 0.4, rate: int = 8000, width: int = 2) -> None:
    """A WAV file with one tone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    wave_form = 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)
    samples = (wave_form * 2 ** (8 * width - 1)).astype({1: np.int8, 2: "<i2", 4: "<i4"}[width])
    raw = (samples.astype(np.int16) + 128).astype(np.uint8) if width == 1 else samples
    with wave.open(str(path), "wb") as file:
        file.setparams((1, width, rate, 0, "NONE", "not compressed"))
        file.writeframes(raw.tobytes())


def spoken_digits(root: Path, speakers: Sequence[str] = ("george", "jackson"), count: int = 8) -> Path:
    """Each digit is a tone of its own; each speaker's tones are a little higher than the one before."""
    for number, speaker in enumerate(speakers):
        for digit in range(10):
            for index in range(count):
                hertz = 300 * (digit + 1) + 40 * number
                tone(root / f"FSDD/recordings/{digit}_{speaker}_{index}.wav", hertz, 0.3 + 0.02 * index)
    return root


def jsonl(path: Path, count: int = 40) -> Path:
    items = [
        {
            "domain": f"d{n % 2}",
            "label": "yes" if n // 2 % 2 else "no",
            "text": f"word{n} and more",
            "who": f"s{n // 4 % 2}",
        }
        for n in range(count)
    ]
    path.write_text("\n".join(json.dumps(item) for item in items) + "\n")
    return path
