"""Each benchmark is read from files as they are published; here from small files in the same formats."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import factories
import numpy as np
import pytest
import torch

from fedspecial.data import catalogue
from fedspecial.data.formats import libsvm, mat
from fedspecial.data.loading import tokens
from fedspecial.data.loading.bad_rows import BadRows
from fedspecial.data.loading.splits import cap_rows, split_rows
from fedspecial.errors import InputError

DIGITS = ("usps", "svhn", "femnist", "mnist")


def test_the_catalogue_imports_without_torch() -> None:
    code = (
        "import sys; from fedspecial.data import catalogue; catalogue.entry('pacs'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_digit10_has_one_input_shape_and_the_papers_order(tmp_path: Path, cache: Path) -> None:
    benchmark = catalogue.load("digit10", data=factories.digit10(tmp_path), cache=cache)
    assert benchmark.task_names == ["usps", "svhn", "emnist", "mnist"]
    assert benchmark.input_shape == (3, 32, 32)
    assert benchmark.domains[0].train.x.dtype == torch.uint8
    for domain in benchmark.domains:
        assert domain.train.y.tolist() == factories.labels(30).tolist()
        assert len(domain.test) == 20


def test_published_sizes_add_up_to_the_papers() -> None:
    entry = catalogue.entry("digit10")
    assert sum(entry.sizes[domain][0] for domain in entry.domains) == 380_548
    assert sum(entry.sizes[domain][1] or 0 for domain in entry.domains) == 78_039
    assert sum(size for size, _ in catalogue.entry("pacs").sizes.values()) == 9_991


def test_femnist_is_never_used_as_emnist(tmp_path: Path, cache: Path) -> None:
    factories.idx(tmp_path / "FEMNIST-digits", "femnist-digits-train")
    factories.idx(tmp_path / "FEMNIST-digits", "femnist-digits-test")
    assert catalogue.load("digit10", data=tmp_path, domains=("femnist",), cache=cache).task_names == ["femnist"]
    with pytest.raises(InputError, match=r"EMNIST/raw/emnist-digits-train.*nist\.gov"):
        catalogue.load("digit10", data=tmp_path, domains=("emnist",), cache=cache)


def test_the_margin_keeps_the_pixels_of_mnist(tmp_path: Path, cache: Path) -> None:
    factories.digit10(tmp_path)
    with gzip.open(tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz") as stream:
        raw = np.frombuffer(stream.read(), np.uint8, offset=16).reshape(-1, 28, 28)
    x = catalogue.load("digit10", data=tmp_path, domains=("mnist",), cache=cache).domains[0].train.x
    assert np.array_equal(x[:, 0, 2:30, 2:30].numpy(), raw)
    assert x[:, 1].equal(x[:, 0])
    assert not x[:, :, :2].any()


def test_emnist_is_transposed_to_be_upright(tmp_path: Path, cache: Path) -> None:
    factories.digit10(tmp_path)
    with gzip.open(tmp_path / "EMNIST/raw/emnist-digits-train-images-idx3-ubyte.gz") as stream:
        raw = np.frombuffer(stream.read(), np.uint8, offset=16).reshape(-1, 28, 28)
    x = catalogue.load("digit10", data=tmp_path, domains=("emnist",), cache=cache).domains[0].train.x
    assert np.array_equal(x[0, 0, 2:30, 2:30].numpy(), raw[0].T)


@pytest.mark.parametrize(
    ("upright", "transposed"), [("emnist", "emnist-transposed"), ("femnist", "femnist-transposed")]
)
def test_transposed_domains_are_the_upright_ones_transposed(
    upright: str, transposed: str, tmp_path: Path, cache: Path
) -> None:
    benchmark = catalogue.load("digit10", data=factories.digit10(tmp_path), domains=(upright, transposed), cache=cache)
    first, second = benchmark.domains
    assert second.train.x.equal(first.train.x.transpose(2, 3))
    assert second.train.y.equal(first.train.y)
    assert not second.train.x.equal(first.train.x)


def test_labels_of_usps_and_svhn_become_digits(tmp_path: Path) -> None:
    factories.libsvm(tmp_path / "usps.bz2", 10)
    factories.mat(tmp_path / "train_32x32.mat", 10)
    assert libsvm.read(tmp_path / "usps.bz2", BadRows())[1].tolist() == list(range(10))
    assert mat.read(tmp_path / "train_32x32.mat", BadRows())[1].tolist() == list(range(10))


def test_domains_can_be_chosen_and_ordered(tmp_path: Path, cache: Path) -> None:
    benchmark = catalogue.load("digit10", data=factories.digit10(tmp_path), domains=("mnist", "usps"), cache=cache)
    assert benchmark.task_names == ["mnist", "usps"]


def test_cap_selects_a_fixed_number_of_each_class(tmp_path: Path, cache: Path) -> None:
    factories.digit10(tmp_path, 100)
    settings = dict(data=tmp_path, domains=("mnist",), cache=cache, cap=40)
    first, again, other = (catalogue.load("digit10", seed=seed, **settings).domains[0].train for seed in (1, 1, 2))  # type: ignore[arg-type]
    assert torch.bincount(first.y).tolist() == [4] * 10
    assert first.x.equal(again.x)
    assert not first.x.equal(other.x)


@pytest.mark.parametrize("cap", [3, 7, 50, 99])
def test_cap_is_exact_and_keeps_every_class(cap: int) -> None:
    labels = np.array([0] * 90 + [1] * 8 + [2] * 2)
    rows = cap_rows(labels, cap, 0, "d")
    assert rows is not None
    assert len(set(rows.tolist())) == cap
    assert set(labels[rows]) == {0, 1, 2}


def test_the_split_is_70_30_in_each_class_and_fixed_by_the_seed() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    train, test = split_rows(labels, 25, "photo")
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(160))
    assert np.bincount(labels[train]).tolist() == [70, 35, 7]
    assert np.array_equal(train, split_rows(labels, 25, "photo")[0])
    assert not np.array_equal(train, split_rows(labels, 26, "photo")[0])
    assert not np.array_equal(train, split_rows(labels, 25, "sketch")[0])


def test_pacs_and_vlcs_are_read_from_folders(tmp_path: Path, cache: Path) -> None:
    for name in ("pacs", "vlcs"):
        entry = catalogue.entry(name)
        factories.tree(tmp_path / name.upper(), entry.domains, entry.classes, 10)
        benchmark = catalogue.load(name, data=tmp_path, image_size=24, cache=cache)
        assert benchmark.task_names == list(entry.domains)
        assert benchmark.input_shape == (3, 24, 24)
        for number, domain in enumerate(benchmark.domains):
            assert (len(domain.train), len(domain.test)) == (7 * len(entry.classes), 3 * len(entry.classes))
            grey = domain.train.x[:, 0, 0, 0].long() - 20 * number - 30 * domain.train.y
            assert int(grey.min()) >= 0
            assert int(grey.max()) < 10


def test_dn4il_follows_its_lists(tmp_path: Path, cache: Path) -> None:
    lists = tmp_path / "DN4IL-lists"
    lists.mkdir()
    for domain in ("sketch", "real"):
        for part, count in (("train", 2), ("test", 1)):
            lines = []
            for label in range(100):
                for number in range(count):
                    name = f"{domain}/thing{label:02}/{part}_{number}.png"
                    factories.image(tmp_path / "DomainNet" / name, label + number, 8)
                    lines.append(f"{name} {label}")
            (lists / f"{domain}_{part}.txt").write_text("\n".join(lines) + "\n")
    benchmark = catalogue.load("dn4il", data=tmp_path, domains=("sketch", "real"), image_size=8, cache=cache)
    assert [(len(d.train), len(d.test)) for d in benchmark.domains] == [(200, 100)] * 2
    assert benchmark.classes[7] == "thing07"
    (tmp_path / "DomainNet/real/thing03/train_1.png").unlink()
    with pytest.raises(InputError, match=r"real/thing03/train_1\.png: missing; row 8 of DN4IL-lists/real_train\.txt"):
        catalogue.load("dn4il", data=tmp_path, domains=("sketch", "real"), image_size=8, cache=cache)
    notices: list[str] = []
    fewer = catalogue.load(
        "dn4il", data=tmp_path, domains=("real",), image_size=8, cache=cache, on_bad="skip", notice=notices.append
    )
    assert len(fewer.domains[0].train) == 199
    assert "1 sample skipped" in notices[0]


def test_cifar_adds_twenty_new_classes_per_task(tmp_path: Path) -> None:
    benchmark = catalogue.load("cifar100", data=factories.cifar(tmp_path))
    assert benchmark.incremental == "class"
    for task, domain in enumerate(benchmark.domains):
        assert sorted(set(domain.train.y.tolist())) == list(range(20 * task, 20 * task + 20))
        assert domain.train.x[:, 0, 0, 0].long().equal(domain.train.y)
    reordered = catalogue.load("cifar100", data=tmp_path, domains=("task-3", "task-1"))
    assert sorted(set(reordered.domains[1].train.y.tolist())) == list(range(20, 40))
    assert reordered.classes == benchmark.classes[40:60] + benchmark.classes[:20]


def test_the_pickled_version_of_cifar_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    with pytest.raises(InputError, match="pickle, which can run code"):
        catalogue.load("cifar100", data=tmp_path)


def test_glue_reads_sentences_and_pairs(tmp_path: Path) -> None:
    factories.glue(tmp_path)
    benchmark = catalogue.load("glue", data=tmp_path, length=16)
    assert benchmark.task_names == ["sst2", "qqp", "qnli"]
    assert benchmark.input_shape == (16,)
    assert benchmark.domains[0].train.x.dtype == torch.int64
    assert not (benchmark.domains[0].train.x == tokens.SEPARATOR).any()
    assert (benchmark.domains[1].train.x == tokens.SEPARATOR).any(dim=1).all()
    for domain in benchmark.domains:
        assert domain.train.y.tolist() == [n % 2 for n in range(20)]


def test_qnli_without_its_training_part_is_split(tmp_path: Path) -> None:
    factories.glue(tmp_path)
    (tmp_path / "QNLI/train.tsv").unlink()
    notices: list[str] = []
    domain = catalogue.load("glue", data=tmp_path, domains=("qnli",), notice=notices.append).domains[0]
    assert (len(domain.train), len(domain.test)) == (14, 6)
    assert "split 70/30" in notices[0]


def test_the_message_for_a_missing_qqp_suggests_mrpc(tmp_path: Path) -> None:
    factories.glue(tmp_path)
    (tmp_path / "QQP/train.tsv").unlink()
    with pytest.raises(InputError, match=r"QQP/train\.tsv: .*domains=sst2,mrpc,qnli"):
        catalogue.load("glue", data=tmp_path)


def test_fdu_mtl_has_four_domains_by_default(tmp_path: Path) -> None:
    benchmark = catalogue.load("fdu-mtl", data=factories.fdu(tmp_path))
    assert benchmark.task_names == ["books", "electronics", "dvd", "kitchen"]
    assert len(catalogue.entry("fdu-mtl").all_domains) == 16


def test_words_have_the_same_hash_in_every_process() -> None:
    ids = tokens.hashed([("Good film!",), ("good FILM !",)], vocab=1000, length=5)
    assert ids[0].tolist() == ids[1].tolist()
    code = (
        "from fedspecial.data.loading.tokens import hashed;"
        "print(hashed([('Good film!',)], vocab=1000, length=5).tolist())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert run.stdout.strip() == str([ids[0].tolist()])


def test_a_long_first_text_does_not_displace_the_second() -> None:
    ids = tokens.hashed([("word " * 500, "other end")], vocab=50, length=20)[0]
    assert tokens.SEPARATOR in ids
    assert ids[ids.tolist().index(tokens.SEPARATOR) + 1 :].any()


def test_word_pairs_follow_the_words() -> None:
    single = tokens.hashed([("not good at all",)], vocab=9999, length=20)[0]
    double = tokens.hashed([("not good at all",)], vocab=9999, length=20, ngrams=2)[0]
    assert double[:4].tolist() == single[:4].tolist()
    assert np.count_nonzero(double) == 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "digit11"}, "did you mean 'digit10'"),
        ({"domains": ("usps", "minst")}, "domains=minst: .*no such domain.*did you mean 'mnist'"),
        ({"domains": ("usps", "usps")}, "domains=usps: is given twice"),
        ({"lenght": 3}, "lenght: unknown option of 'digit10'"),
        ({"cap": 0}, "cap=0"),
        ({"cap": 5}, "cap=5: domain 'usps' has 10 classes"),
        ({"on_bad": "ignore"}, "on_bad='ignore'"),
        ({"data": Path("nowhere")}, "data=nowhere: there is no such file or folder"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(
    tmp_path: Path, cache: Path, settings: dict[str, object], message: str
) -> None:
    arguments = {"name": "digit10", "data": factories.digit10(tmp_path), "cache": cache} | settings
    with pytest.raises(InputError, match=message):
        catalogue.load(**arguments)  # type: ignore[arg-type]


def test_a_missing_data_folder_setting_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSPECIAL_DATA", raising=False)
    with pytest.raises(InputError, match="--data or FEDSPECIAL_DATA"):
        catalogue.load("pacs")


def test_the_built_in_benchmark_is_loaded_like_the_others() -> None:
    from fedspecial.data.benchmarks import digits_shift

    assert catalogue.entry("digits-shift").domains == tuple(digits_shift.DOMAINS)
    first = next(iter(digits_shift.DOMAINS))
    assert len(catalogue.load("digits-shift", domains=(first,), cap=100).domains[0].train) == 100


def test_a_missing_tokenizer_folder_is_reported(tmp_path: Path) -> None:
    factories.fdu(tmp_path)
    with pytest.raises(InputError, match="tokenizer"):
        catalogue.load("fdu-mtl", data=tmp_path, tokenizer=str(tmp_path / "nowhere"))
