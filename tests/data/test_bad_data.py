"""A bad sample is reported in one line with its file and row; with on_bad=skip it is skipped, counted and reported."""

from __future__ import annotations

import bz2
import gzip
import struct
from pathlib import Path
from typing import Any

import factories
import pytest

from fedspecial.data import catalogue
from fedspecial.errors import InputError


def refused(name: str, message: str, **settings: Any) -> None:
    with pytest.raises(InputError, match=message) as caught:
        catalogue.load(name, **settings)
    assert "\n" not in str(caught.value)


def skipped(name: str, **settings: Any) -> tuple[int, list[str]]:
    """The number of samples that remain, and the notices."""
    notices: list[str] = []
    benchmark = catalogue.load(name, on_bad="skip", notice=notices.append, **settings)
    return sum(len(domain.train) + len(domain.test) for domain in benchmark.domains), notices


def test_a_corrupt_image_is_named(tmp_path: Path, cache: Path) -> None:
    entry = catalogue.entry("pacs")
    factories.tree(tmp_path / "PACS", entry.domains, entry.classes, 4)
    (tmp_path / "PACS/photo/guitar/001.png").write_bytes(b"\x89PNG but no more")
    settings = {"data": tmp_path, "image_size": 16, "cache": cache}
    refused("pacs", r"PACS/photo/guitar/001\.png: not a readable image", **settings)
    left, notices = skipped("pacs", **settings)
    assert left == 4 * 7 * 4 - 1
    assert notices[0].startswith("domain 'photo': 1 sample skipped; first: PACS/photo/guitar/001.png")
    refused("pacs", r"PACS/photo/guitar/001\.png", **settings)


@pytest.mark.parametrize("how", ["cut gzip", "cut content"])
def test_a_truncated_idx_file_is_reported_by_row(tmp_path: Path, cache: Path, how: str) -> None:
    factories.digit10(tmp_path)
    path = tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz"
    content = gzip.decompress(path.read_bytes())
    if how == "cut gzip":
        path.write_bytes(path.read_bytes()[:-9000])
    else:
        path.write_bytes(gzip.compress(content[: 16 + 784 * 25 + 100]))
    settings = {"data": tmp_path, "domains": ("mnist",), "cache": cache}
    refused("digit10", r"train-images-idx3-ubyte\.gz: truncated at row \d+: 30 rows announced", **settings)
    left, notices = skipped("digit10", **settings)
    assert 30 < left < 50
    assert "skipped" in notices[0]


def test_a_file_that_is_not_idx_is_refused(tmp_path: Path, cache: Path) -> None:
    factories.digit10(tmp_path)
    path = tmp_path / "MNIST/raw/train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(b"<html>not found</html>"))
    refused("digit10", r"train-labels.*not an idx file", data=tmp_path, domains=("mnist",), cache=cache)
    path.write_bytes(b"plain")
    refused("digit10", r"train-labels.*not a complete gzip file", data=tmp_path, domains=("mnist",), cache=cache)


def test_a_label_outside_the_label_set_is_a_bad_sample(tmp_path: Path, cache: Path) -> None:
    factories.digit10(tmp_path)
    body = bytes([0, 1, 2, 12, *range(4, 10)] * 3)
    path = tmp_path / "MNIST/raw/train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(struct.pack(">II", 0x801, 30) + body))
    settings = {"data": tmp_path, "domains": ("mnist",), "cache": cache}
    refused("digit10", r"train-labels-idx1-ubyte\.gz: row 4: label 12 is outside 0…9", **settings)
    path.write_bytes(gzip.compress(struct.pack(">II", 0x801, 30) + bytes([*range(10)] * 2 + [12] + [*range(1, 10)])))
    left, notices = skipped("digit10", **settings)
    assert left == 49
    assert "row 21: label 12" in notices[0]


def test_a_malformed_line_of_usps_is_a_bad_sample(tmp_path: Path, cache: Path) -> None:
    factories.digit10(tmp_path)
    path = tmp_path / "USPS/usps.bz2"
    lines = bz2.decompress(path.read_bytes()).split(b"\n")
    lines[4] = b"5 1:0.2 2"
    path.write_bytes(bz2.compress(b"\n".join(lines)))
    settings = {"data": tmp_path, "domains": ("usps",), "cache": cache}
    refused("digit10", r"usps\.bz2: row 5: not 'label index:value", **settings)
    assert skipped("digit10", **settings)[0] == 49
    path.write_bytes(path.read_bytes()[:50])
    refused("digit10", r"usps\.bz2: not a complete bzip2 file", **settings)


def test_a_damaged_mat_file_is_refused(tmp_path: Path, cache: Path) -> None:
    factories.digit10(tmp_path)
    path = tmp_path / "SVHN/train_32x32.mat"
    path.write_bytes(path.read_bytes()[:5000])
    refused("digit10", r"train_32x32\.mat: not a complete MATLAB v5", data=tmp_path, domains=("svhn",), cache=cache)


def test_a_truncated_cifar_file_is_reported_by_row(tmp_path: Path) -> None:
    factories.cifar(tmp_path)
    path = tmp_path / "cifar-100-binary/train.bin"
    path.write_bytes(path.read_bytes() + b"\0" * 100)
    refused("cifar100", r"train\.bin: truncated at row 301: 100 of 3074 bytes", data=tmp_path)
    assert skipped("cifar100", data=tmp_path)[0] == 400


def test_a_class_that_a_published_domain_lacks_is_refused(tmp_path: Path, cache: Path) -> None:
    factories.tree(tmp_path / "PACS", ("photo", "cartoon"), factories.PACS_CLASSES, 5)
    for file in (tmp_path / "PACS/cartoon/dog").iterdir():
        file.unlink()
    settings = {"data": tmp_path, "cache": cache, "image_size": 8}
    refused("pacs", r"PACS/cartoon: no images of class 'dog'", domains=("photo", "cartoon"), **settings)
    assert len(catalogue.load("pacs", domains=("photo",), **settings).domains[0].train) == 28  # type: ignore[arg-type]


def test_a_folder_that_is_not_a_class_is_refused(tmp_path: Path, cache: Path) -> None:
    entry = catalogue.entry("vlcs")
    factories.tree(tmp_path / "VLCS", entry.domains, entry.classes, 4)
    factories.image(tmp_path / "VLCS/SUN09/sofa/1.png", 3)
    settings = {"data": tmp_path, "image_size": 16, "cache": cache}
    refused("vlcs", r"VLCS/SUN09/sofa: 'sofa' is not one of the classes", **settings)
    assert skipped("vlcs", **settings)[0] == 80


def test_a_site_without_images_is_refused_or_skipped(tmp_path: Path, cache: Path) -> None:
    for site in ("north", "south"):
        factories.tree(tmp_path / site, ("a", "b"), ("cat", "dog"), 5)
    (tmp_path / "east").mkdir()
    refused("folders", r"east/a: contains no images", data=tmp_path, cache=cache)
    notices: list[str] = []
    benchmark = catalogue.load("folders", data=tmp_path, cache=cache, on_bad="skip", notice=notices.append)
    assert benchmark.domains[0].sites is not None
    assert [len(rows) > 0 for rows in benchmark.domains[0].sites] == [False, True, True]
    assert "east/a" in notices[0]


def test_text_in_another_encoding_is_a_bad_sample(tmp_path: Path) -> None:
    factories.fdu(tmp_path)
    path = tmp_path / "FDU-MTL/dvd.task.train"
    path.write_bytes(path.read_bytes().replace(b"number 7", b"caf\xe9 7"))
    refused("fdu-mtl", r"FDU-MTL/dvd\.task\.train: row 8: not UTF-8 text \(byte 0xe9 at position \d+\)", data=tmp_path)
    left, notices = skipped("fdu-mtl", data=tmp_path)
    assert left == 159
    assert "domain 'dvd': 1 sample skipped" in notices[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [("no tab here", "row 3: no tab"), ("3\ta text", "row 3: label '3' is not one of 0, 1")],
)
def test_a_malformed_review_is_a_bad_sample(tmp_path: Path, line: str, message: str) -> None:
    factories.fdu(tmp_path)
    path = tmp_path / "FDU-MTL/books.task.train"
    lines = path.read_text().splitlines()
    lines[2] = line
    path.write_text("\n".join(lines))
    refused("fdu-mtl", rf"books\.task\.train: {message}", data=tmp_path)
    assert skipped("fdu-mtl", data=tmp_path)[0] == 159


def test_a_tsv_file_must_have_the_expected_columns(tmp_path: Path) -> None:
    factories.glue(tmp_path)
    path = tmp_path / "SST-2/train.tsv"
    text = path.read_text()
    path.write_text(text.replace("film 3 \t1", "film 3"))
    refused("glue", r"SST-2/train\.tsv: row 5: 1 columns, expected 2", data=tmp_path)
    path.write_text(text.replace("\tlabel", "\tlabels"))
    refused("glue", r"SST-2/train\.tsv: row 1: no column 'label' among .*did you mean 'labels'", data=tmp_path)


CSV = "domain,label,age,kind\n" + "".join(f"d{n % 2},{n // 2 % 2},{n},{'x' if n % 3 else 'y'}\n" for n in range(40))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            CSV.replace("label", "lable"),
            r"t\.csv: row 1: no column 'label' among .*did you mean 'lable'.*label_column=…",
        ),
        (CSV.replace("domain", "ward"), r"t\.csv: row 1: no column 'domain' among ward, .* with domain_column=…"),
        (CSV.replace("kind", "age"), r"t\.csv: row 1: the column 'age' occurs twice; give each column its own name"),
        (
            "domain,label,age\n" + "".join(f"d{n % 2},{n / 7:.3f},{n}\n" for n in range(40)),
            r"domain 'd0': 20 samples .* of 20 classes.*objective=regression",
        ),
        (
            "domain,label,age,patient\n" + "".join(f"d{n % 2},{n // 2 % 2},{n},p{n}\n" for n in range(60)),
            r"column 'patient': 60 distinct texts, at most 50 .*leave the column out",
        ),
        (CSV.replace("d1,1,7,x", "d1,1,old,x"), r"t\.csv: row 9: column 'age': 'old' is not a number"),
        (CSV.replace("d1,1,7,x", "d1,1,7"), r"t\.csv: row 9: 3 columns, expected 4"),
        (CSV.replace("d1,1,7,x", "d1,,7,x"), r"t\.csv: row 9: the label is empty"),
        (CSV.replace("d1,1,7,x", "d1,1,inf,x"), r"t\.csv: row 9: column 'age': 'inf' is not a number"),
        (CSV.replace("d1,1,7,x", "d1,1,-1e39,x"), r"t\.csv: row 9: column 'age': '-1e39' is too large, over 3\.4e\+38"),
        ("", r"t\.csv: the file is empty"),
    ],
)
def test_a_malformed_table_is_refused_by_row(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    refused("folders", message, data=tmp_path)


@pytest.mark.parametrize("on_bad", ["stop", "skip"])
def test_the_names_of_columns_are_never_skipped(tmp_path: Path, on_bad: str) -> None:
    """The first row of values would be taken for them, and the message would be about a column that is absent."""
    (tmp_path / "t.csv").write_bytes(CSV.replace("age", "größe", 1).encode("latin-1"))
    refused("folders", r"t\.csv: row 1: not UTF-8 text .*; save the file as UTF-8", data=tmp_path, on_bad=on_bad)


def test_a_site_with_one_sample_of_a_class_is_told_from_a_number_as_label(tmp_path: Path) -> None:
    rows = "".join(f"d{n % 2},{n // 2 % 2},{n},s{n}\n" for n in range(40))
    (tmp_path / "t.csv").write_text("domain,label,age,site\n" + rows)
    message = "domain 'd0': 20 samples are too few for a 70/30 split at each of 20 sites"
    refused("folders", message, data=tmp_path, site_column="site")


def test_a_malformed_row_of_a_table_can_be_skipped(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(CSV.replace("d1,1,7,x", "d1,1,old,x"))
    left, notices = skipped("folders", data=tmp_path)
    assert left == 39
    assert "1 sample skipped" in notices[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ('{"domain": "d0", "label": 1}', "no field 'text'"),
        ('{"domain": "d0", "label": 1, "text": []}', "no field 'text'"),
        ("[1]", "no field 'domain'"),
    ],
)
def test_a_malformed_json_line_is_a_bad_sample(tmp_path: Path, line: str, message: str) -> None:
    path = factories.jsonl(tmp_path / "t.jsonl")
    lines = path.read_text().splitlines()
    lines[5] = line
    path.write_text("\n".join(lines))
    refused("folders", rf"t\.jsonl: row 6: {message}", data=tmp_path)
    assert skipped("folders", data=tmp_path)[0] == 39


def test_a_malformed_row_of_heart_is_a_bad_sample(tmp_path: Path) -> None:
    factories.heart(tmp_path)
    path = tmp_path / "HeartDisease/processed.va.data"
    text = path.read_text().splitlines()
    path.write_text("\n".join([text[0], text[1].replace("41,", "forty,"), *text[2:]]))
    refused("heart", r"processed\.va\.data: row 2: column 'age': 'forty' is not a number", data=tmp_path)
    path.write_text("\n".join([text[0], text[1][:-1] + "9", *text[2:]]))
    refused("heart", r"processed\.va\.data: row 2: label '9' is not one of 0…4", data=tmp_path)
    assert skipped("heart", data=tmp_path)[0] == 4 * 24 - 1


def test_domains_without_a_common_class_are_refused_in_a_domain_incremental_run(tmp_path: Path) -> None:
    rows = [
        f'{{"domain": "{d}", "label": {n % 2 + first}, "text": "t {n}"}}'
        for d, first in (("a", 0), ("b", 2))
        for n in range(30)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    refused("folders", "domain 'b': it shares no class with the domains before it", data=tmp_path)
