"""Tables with other separators, compressed files, DICOM; the settings of `folders` follow the kind of the data."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import factories
import numpy as np
import pytest

import fedspecial
from fedspecial.config import merge_settings
from fedspecial.data import catalogue, check
from fedspecial.errors import InputError


def rows(separator: str) -> str:
    lines = [["domain", "label", "age", "ward"]]
    lines += [[f"d{n % 2}", f"c{n // 2 % 2}", str(20 + n), f"w{n % 3}"] for n in range(40)]
    return "\n".join(separator.join(line) for line in lines) + "\n"


@pytest.mark.parametrize(("separator", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_the_separator_of_a_table_is_detected_and_named(tmp_path: Path, separator: str, name: str) -> None:
    (tmp_path / "a.csv").write_text(rows(","))
    (tmp_path / "b.csv").write_text(rows(separator))
    notices: list[str] = []
    commas = catalogue.load("folders", data=tmp_path / "a.csv")
    other = catalogue.load("folders", data=tmp_path / "b.csv", notice=notices.append)
    assert np.array_equal(commas.domains[0].train.x, other.domains[0].train.x)
    assert notices == [f"b.csv: columns separated by {name}"]


def test_a_table_whose_separator_is_not_clear_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("domain,x;label,y\na,1;b,2\n")
    with pytest.raises(InputError, match="columns could be separated by commas and semicolons"):
        catalogue.load("folders", data=tmp_path)


def test_a_decimal_comma_is_refused_instead_of_becoming_a_category(tmp_path: Path) -> None:
    lines = ["domain;label;age"] + [f"d{n % 2};c{n // 2 % 2};1,{n}" for n in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"column 'age': '1,0' has a decimal comma"):
        catalogue.load("folders", data=tmp_path)


def test_compressed_tables_and_texts_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(rows("\t").encode()))
    assert catalogue.load("folders", data=tmp_path / "a.tsv.gz").kind == "table"
    text = factories.jsonl(tmp_path / "b.jsonl").read_bytes()
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(text))
    assert catalogue.load("folders", data=tmp_path / "b.jsonl.gz").kind == "text"
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(rows(",").encode())[:40])
    with pytest.raises(InputError, match=r"c\.csv\.gz: the gzip file is damaged"):
        catalogue.load("folders", data=tmp_path / "c.csv.gz")


def test_the_preset_of_folders_follows_the_kind_of_the_data(tmp_path: Path) -> None:
    factories.tree(tmp_path / "photos", ("a",), ("x", "y"), 2)
    (tmp_path / "t.csv").write_text(rows(","))
    factories.jsonl(tmp_path / "t.jsonl")
    chosen = {}
    for name in ("photos", "t.csv", "t.jsonl"):
        settings = merge_settings({"benchmark": "folders", "data": str(tmp_path / name)})
        chosen[name] = (settings["model"], settings["optimizer"], settings["client_lr"])
    assert chosen == {
        "photos": ("cnn", "sgd", 0.05),
        "t.csv": ("mlp", "sgd", 0.05),
        "t.jsonl": ("text", "adamw", 0.01),
    }
    own = merge_settings({"benchmark": "folders", "data": str(tmp_path / "t.jsonl"), "client_lr": 0.5})
    assert own["client_lr"] == 0.5


def test_the_choice_is_recorded_and_reported(tmp_path: Path) -> None:
    data = factories.jsonl(tmp_path / "t.jsonl")
    out = tmp_path / "run"
    fedspecial.run("folders", data=str(data), rounds=1, clients=2, method="fedavg", out=out)
    assert "model: text\n" in (out / "config.yaml").read_text()
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert {"text data: model=text, optimizer=adamw, client_lr=0.01"} == {
        event["text"] for event in events if event["event"] == "data_notice"
    }


@pytest.mark.parametrize("model", ["mlp", "logistic", "cnn"])
def test_models_of_numbers_refuse_texts_in_one_line(tmp_path: Path, model: str) -> None:
    data = factories.jsonl(tmp_path / "t.jsonl")
    with pytest.raises(InputError, match=f"model={model}: the data is texts as token ids; use model=text"):
        fedspecial.run("folders", data=str(data), model=model, out=tmp_path / "run")


def test_the_text_model_refuses_a_table_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(rows(","))
    with pytest.raises(InputError, match="model=text: it reads token ids, but the data is of kind 'table'"):
        fedspecial.run("folders", data=str(tmp_path / "t.csv"), model="text", out=tmp_path / "run")


def test_check_says_why_lines_without_labels_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"domain": "a", "text": "x"}\n' * 4)
    findings = list(check.check("folders", data=tmp_path))
    assert [finding.level for finding in findings] == ["bad", "bad"]
    assert "no field 'label'" in findings[0].line
    assert "no usable rows" in findings[1].line


def test_a_cache_that_cannot_be_written_is_only_a_note(tmp_path: Path) -> None:
    factories.tree(tmp_path / "photos", ("a",), ("x", "y"), 5)
    (tmp_path / "cache").write_text("a file where the cache folder should be")
    findings = list(check.check("folders", data=tmp_path / "photos", cache=tmp_path / "cache"))
    assert {finding.level for finding in findings} == {"note", "ok"}
    assert check.exit_code(findings, strict=False) == 0


def dicom(path: Path, value: int) -> None:
    pydicom = pytest.importorskip("pydicom")
    from pydicom.dataset import FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    found = pydicom.Dataset()
    found.file_meta = meta
    found.SOPClassUID, found.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    found.Rows = found.Columns = 8
    found.BitsAllocated = found.BitsStored = 16
    found.HighBit, found.SamplesPerPixel, found.PixelRepresentation = 15, 1, 0
    found.PhotometricInterpretation = "MONOCHROME2"
    pixels = np.zeros((8, 8), np.uint16)
    pixels[:, :4] = value
    found.PixelData = pixels.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    found.save_as(path, enforce_file_format=True)


def test_dicom_files_are_read_from_black_to_white(tmp_path: Path, cache: Path) -> None:
    for name in ("ill", "well"):
        for number in range(4):
            dicom(tmp_path / "scanner" / name / f"{number}.dcm", 1000 + number)
    x = catalogue.load("folders", data=tmp_path, cache=cache, image_size=8).domains[0].train.x
    assert set(x[..., :4].unique().tolist()) == {255}
    assert set(x[..., 4:].unique().tolist()) == {0}


def test_without_pydicom_the_file_and_the_extra_are_named(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pydicom", None)
    for name in ("ill", "well"):
        (tmp_path / "scanner" / name).mkdir(parents=True)
        (tmp_path / "scanner" / name / "1.dcm").write_bytes(b"DICM")
    with pytest.raises(InputError, match=r"1\.dcm: a DICOM file, which needs pydicom: pip install 'fedspecial\[dicom"):
        catalogue.load("folders", data=tmp_path, cache=cache)
