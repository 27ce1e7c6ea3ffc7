"""`gas-drift` and `spoken-digits` from small files in the published formats."""

from __future__ import annotations

import wave
from pathlib import Path

import factories
import numpy as np
import pytest
import torch

import fedspecial
from fedspecial.data import catalogue
from fedspecial.data.check import check
from fedspecial.data.formats import libsvm, wav
from fedspecial.data.loading.bad_rows import BadRows
from fedspecial.errors import InputError

PERIODS = ("period1", "period2", "period3")


def gas(root: Path, cache: Path, **settings: object) -> fedspecial.Benchmark:
    return catalogue.load("gas-drift", data=root, cache=cache, **{"domains": PERIODS, **settings})  # type: ignore[arg-type]


# --- gas-drift ----------------------------------------------------------------------------------------------------


def test_features_are_read_with_and_without_a_concentration(tmp_path: Path) -> None:
    path = tmp_path / "batch1.dat"
    path.write_text("2 1:0.5 3:-7.25 \n6;10.000000 2:1e3\n")
    x, y = libsvm.read_features(path, BadRows(), 3, 6)
    assert x.tolist() == [[0.5, 0, -7.25], [0, 1000, 0]]
    assert y.tolist() == [1, 5]


@pytest.mark.parametrize("line", ["7 1:1", "1 129:1", "1 1", "one 1:1", "1 1:nan", "1"])
def test_a_malformed_measurement_is_a_bad_sample(tmp_path: Path, cache: Path, line: str) -> None:
    factories.gas_drift(tmp_path)
    path = tmp_path / "GasSensorDrift/batch2.dat"
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(InputError, match=r"batch2\.dat: row 37: "):
        gas(tmp_path, cache)
    found = gas(tmp_path, cache, on_bad="skip").domains[1]
    assert len(found.train) + len(found.test) == 36


def test_only_the_first_period_sets_the_scale(tmp_path: Path, cache: Path) -> None:
    factories.gas_drift(tmp_path)
    before = gas(tmp_path, cache)
    first = before.domains[0].train.x
    assert torch.allclose(first.mean(0), torch.zeros(128), atol=1e-4)
    assert torch.allclose(first.std(0, correction=0), torch.ones(128), atol=1e-4)
    assert before.domains[1].train.x.mean() > 0.2  # the drift is still there
    path = tmp_path / "GasSensorDrift/batch2.dat"
    path.write_text(path.read_text().replace("1:", "1:9"))
    after = gas(tmp_path, cache)
    assert torch.equal(after.domains[0].train.x, first)
    assert not torch.equal(after.domains[1].train.x, before.domains[1].train.x)
    assert float(after.domains[1].train.x.max()) <= 10


def test_new_rows_are_scaled_like_the_training_data(tmp_path: Path, cache: Path) -> None:
    factories.gas_drift(tmp_path)
    schema = gas(tmp_path, cache).schema
    alone = gas(tmp_path, cache, domains=("period2",), schema=schema).domains[0]
    assert torch.equal(alone.train.x, gas(tmp_path, cache).domains[1].train.x)
    assert not torch.equal(alone.train.x, gas(tmp_path, cache, domains=("period2",)).domains[0].train.x)


def test_values_are_decoded_once_and_exactly(tmp_path: Path, cache: Path) -> None:
    factories.gas_drift(tmp_path)
    fresh, cached = gas(tmp_path, cache), gas(tmp_path, cache)
    assert len(list(cache.glob("*.bin"))) == 3
    assert all(torch.equal(a.train.x, b.train.x) for a, b in zip(fresh.domains, cached.domains, strict=True))


# --- spoken-digits ------------------------------------------------------------------------------------------------


def test_a_tone_is_a_line_at_its_height(tmp_path: Path) -> None:
    """The bands divide 0 … 2146 mel (4 kHz) into 33 steps; the centre of band k is (k + 1) · 2146.06 / 33 mel."""
    rows = []
    for hertz in (300, 1000, 3000):
        factories.tone(tmp_path / "tone.wav", hertz)
        image = wav.spectrogram(*wav.read(tmp_path / "tone.wav"), 32)
        rows.append(int(image[:, 16].argmax()))
        band = 2595 * np.log10(1 + hertz / 700) / (2146.06 / 33) - 1
        assert abs(31 - rows[-1] - band) <= 0.6
        assert image.max() == 255
    assert rows == sorted(rows, reverse=True)


def test_the_image_does_not_depend_on_the_volume_and_silence_is_black(tmp_path: Path) -> None:
    factories.tone(tmp_path / "tone.wav", 440)
    samples, rate = wav.read(tmp_path / "tone.wav")
    image = wav.spectrogram(samples, rate, 32)
    assert np.array_equal(image, wav.spectrogram(samples / 7, rate, 32))
    assert not image[:, :8].any()  # 0.4 s of sound in the middle of a second
    assert not image[:, -8:].any()
    assert not wav.spectrogram(np.zeros(500), rate, 32).any()


def test_of_a_long_recording_the_loudest_second_is_used() -> None:
    quiet, loud = 0.001 * np.sin(np.arange(16000)), np.sin(np.arange(8250) / 2)
    image = wav.spectrogram(np.concatenate([quiet, loud]), 8000, 32)
    assert np.array_equal(image, wav.spectrogram(loud, 8000, 32))


@pytest.mark.parametrize("width", [1, 2, 4])
def test_sample_widths_and_channels_are_read(tmp_path: Path, width: int) -> None:
    factories.tone(tmp_path / "tone.wav", 500, width=width)
    samples, rate = wav.read(tmp_path / "tone.wav")
    assert rate == 8000
    assert len(samples) == 3200
    assert abs(abs(samples).max() - 0.5) < 0.01
    with wave.open(str(tmp_path / "two.wav"), "wb") as file:
        file.setparams((2, 2, 8000, 0, "NONE", ""))
        file.writeframes(np.array([[100, 300], [-200, 0]], "<i2").tobytes())
    assert (wav.read(tmp_path / "two.wav")[0] * 2**15).tolist() == [200, -100]


def test_the_first_five_recordings_of_each_digit_are_the_test_part(tmp_path: Path, cache: Path) -> None:
    benchmark = catalogue.load(
        "spoken-digits", data=factories.spoken_digits(tmp_path), domains=("george", "jackson"), cache=cache
    )
    assert benchmark.input_shape == (3, 32, 32)
    for domain in benchmark.domains:
        assert torch.bincount(domain.train.y).tolist() == [3] * 10
        assert torch.bincount(domain.test.y).tolist() == [5] * 10
        tops = [int(domain.train.x[domain.train.y == digit][0, 0, :, 16].argmax()) for digit in range(10)]
        assert tops == sorted(tops, reverse=True)  # the tone of a larger digit is higher
    smaller = catalogue.load("spoken-digits", data=tmp_path, domains=("george",), cache=cache, image_size=16)
    assert smaller.input_shape == (3, 16, 16)
    with pytest.raises(InputError, match="image_size=128: spectrograms"):
        catalogue.load("spoken-digits", data=tmp_path, domains=("george",), cache=cache, image_size=128)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a readable WAV file"),
        (b"RIFF\x00\x00\x00\x00WAVEnone", "not a readable WAV file"),
        ("cut", "cut off after 100 of 3200 samples"),
        ("deep", "24 bits per sample"),
    ],
)
def test_a_damaged_recording_is_a_bad_sample(tmp_path: Path, cache: Path, content: bytes | str, message: str) -> None:
    factories.spoken_digits(tmp_path)
    path = tmp_path / "FSDD/recordings/3_george_6.wav"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "cut":
        factories.tone(path, 440)
        path.write_bytes(path.read_bytes()[: 44 + 200])
    else:
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 3, 8000, 0, "NONE", ""))
            file.writeframes(bytes(30))
    with pytest.raises(InputError, match=rf"FSDD/recordings/3_george_6\.wav: .*{message}"):
        catalogue.load("spoken-digits", data=tmp_path, domains=("george",), cache=cache)
    notices: list[str] = []
    found = catalogue.load(
        "spoken-digits", data=tmp_path, domains=("george",), cache=cache, on_bad="skip", notice=notices.append
    )
    assert len(found.domains[0].train) == 29
    assert "1 sample skipped" in notices[0]


def test_missing_recordings_are_reported_with_their_source(tmp_path: Path, cache: Path) -> None:
    factories.spoken_digits(tmp_path)
    with pytest.raises(InputError, match=r"FSDD/recordings/0_lucas_0\.wav: not in the data folder .*get it from"):
        catalogue.load("spoken-digits", data=tmp_path, cache=cache)


# --- a domain that lacks a class ----------------------------------------------------------------------------------


def test_a_missing_class_is_counted_by_check(tmp_path: Path, cache: Path) -> None:
    factories.gas_drift(tmp_path)
    lines = [finding.line for finding in check("gas-drift", data=tmp_path, domains=PERIODS, cache=cache)]
    lacking = "domain 'period3': lacks 1 of 6 classes: toluene; it has ethanol 6+2, ethylene 5+2, ammonia 5+2"
    assert any(line.startswith(lacking) for line in lines)
    assert lines[-1] == "3 domains agree in shape and share the label set; 1 of them lack a class"


@pytest.fixture(scope="module")
def gas_run(tmp_path_factory: pytest.TempPathFactory) -> fedspecial.Result:
    root = factories.gas_drift(tmp_path_factory.mktemp("gas"))
    return fedspecial.run(
        "gas-drift", data=str(root), domains=PERIODS, method="fedavg", model="logistic", width=None, rounds=2,
        clients=2, clients_per_round=2, min_per_client=1, partition="iid", out=root / "run",
    )  # fmt: skip


def test_the_label_set_is_fixed_for_the_run_and_the_gap_is_in_the_result(gas_run: fedspecial.Result) -> None:
    assert gas_run.missing_classes == {"period3": {"toluene": [0, 0]}}
    assert "period3 has no test samples of toluene: its metrics are over the other classes" in gas_run.notes
    assert gas_run.model.fc.out_features == 6
    per_class = gas_run.metrics["per_class_accuracy"][-1]
    assert per_class[2][5] is None
    assert per_class[0][5] is not None
    assert gas_run.folder is not None
    assert "domain 'period3': lacks 1 of 6 classes" in (gas_run.folder / "events.jsonl").read_text()
    assert "no test samples of toluene" in (gas_run.folder / "README.md").read_text()


def test_a_single_class_is_reported(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "t.csv").write_text("domain,label,age\n" + "".join(f"d{n % 2},ill,{n}\n" for n in range(20)))
    found = list(check("folders", data=tmp_path / "t.csv", cache=cache))
    assert [f.line for f in found if f.level == "note"] == [
        "label: 'ill' is the only class, so every model is always right; check the labels"
    ]


def test_a_folder_of_images_may_lack_a_class(tmp_path: Path, cache: Path) -> None:
    factories.tree(tmp_path, ["a", "b"], ["cat", "dog", "fox"])
    for path in (tmp_path / "b/dog").iterdir():
        path.unlink()
    found = list(check("folders", data=tmp_path, cache=cache, image_size=8))
    assert [f.line for f in found if f.level == "note"] == [
        "domain 'b': lacks 1 of 3 classes: dog; it has cat 7+3, fox 7+3"
    ]
