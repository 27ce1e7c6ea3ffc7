"""The catalogue's entries: a table of data, no code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedspecial.data.benchmarks import corpora, digit10, own

Size = tuple[int, int | None]
"""Published training and test samples; None where no split is published and the first number counts all."""


@dataclass(frozen=True)
class Entry:
    """One benchmark.

    domains: in the order they are learned; `others` can be asked for by name
    sizes:   published sizes by domain
    md5:     published checksums by file name (`:content` for those of the unpacked bytes)
    places:  where a person gets the files, by domain; "" for all of them
    options: the benchmark's own options and their defaults
    """

    name: str
    title: str
    kind: Literal["image", "text", "table"]
    domains: tuple[str, ...]
    num_classes: int
    loader: str
    licence: str
    places: Mapping[str, str]
    classes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    sizes: Mapping[str, Size] = field(default_factory=dict)
    md5: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    incremental: Literal["domain", "class"] = "domain"
    needs_data: bool = True

    @property
    def all_domains(self) -> tuple[str, ...]:
        return self.domains + self.others


_DOMAINBED = "DomainBed's download script, https://github.com/facebookresearch/DomainBed"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps"
_EMNIST = "https://www.nist.gov/itl/products-and-services/emnist-dataset (gzip.zip, the digits)"
_FEMNIST = "https://github.com/TalwalkarLab/leaf, digits written to idx files"

ENTRIES = (
    Entry(
        name="digits-shift",
        title="8×8 digits of scikit-learn in worlds rendered by the program; nothing to download",
        kind="image",
        domains=("paper", "neon", "photo", "hatch"),
        classes=digit10.CLASSES,
        num_classes=10,
        loader="",
        licence="BSD-3-Clause (scikit-learn), digits from UCI, CC BY 4.0",
        places={},
        options={"split": "test"},
        needs_data=False,
    ),
    Entry(
        name="digit10",
        title="Digit-10: handwritten, printed and photographed digits",
        kind="image",
        domains=("usps", "svhn", "emnist", "mnist"),
        others=("femnist", "emnist-lying", "femnist-lying"),
        classes=digit10.CLASSES,
        num_classes=10,
        loader="digit10",
        licence="MNIST CC BY-SA 3.0; SVHN non-commercial use; EMNIST, FEMNIST and USPS state none",
        places={
            "usps": _LIBSVM,
            "svhn": "http://ufldl.stanford.edu/housenumbers/",
            "emnist": _EMNIST,
            "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "femnist": _FEMNIST,
            "emnist-lying": f"{_EMNIST}, as they lie in the files",
            "femnist-lying": f"{_FEMNIST}, mirrored at the diagonal",
        },
        sizes={
            "usps": (7291, 2007),
            "svhn": (73257, 26032),
            "emnist": (240000, 40000),
            "emnist-lying": (240000, 40000),
            "mnist": (60000, 10000),
        },
        md5={
            "train-images-idx3-ubyte:content": "6bbc9ace898e44ae57da46a324031adb",
            "train-labels-idx1-ubyte:content": "a25bea736e30d166cdddb491f175f624",
            "t10k-images-idx3-ubyte:content": "2646ac647ad5339dbf082846283269ea",
            "t10k-labels-idx1-ubyte:content": "27ae3e4e09519cfbb04c329615203637",
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
            "usps.bz2": "ec16c51db3855ca6c91edd34d0e9b197",
            "usps.t.bz2": "8ea070ee2aca1ac39742fdd1ef5ed118",
        },
    ),
    Entry(
        name="pacs",
        title="PACS: seven kinds of things, sketched, drawn, photographed and painted",
        kind="image",
        domains=("sketch", "cartoon", "photo", "art_painting"),
        classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
        num_classes=7,
        loader="trees",
        licence="none stated; published for research",
        places={"": _DOMAINBED},
        sizes={
            "sketch": (3929, None),
            "cartoon": (2344, None),
            "photo": (1670, None),
            "art_painting": (2048, None),
        },
        options={"folder": "PACS"},
    ),
    Entry(
        name="vlcs",
        title="VLCS: five kinds of things in four photo collections",
        kind="image",
        domains=("Caltech101", "LabelMe", "SUN09", "VOC2007"),
        classes=("bird", "car", "chair", "dog", "person"),
        num_classes=5,
        loader="trees",
        licence="none stated; published for research",
        places={"": _DOMAINBED},
        sizes={
            "Caltech101": (1415, None),
            "LabelMe": (2656, None),
            "SUN09": (3282, None),
            "VOC2007": (3376, None),
        },
        options={"folder": "VLCS"},
    ),
    Entry(
        name="dn4il",
        title="DN4IL: a hundred classes of DomainNet in six styles",
        kind="image",
        domains=("sketch", "infograph", "painting", "quickdraw", "real", "clipart"),
        num_classes=100,
        loader="dn4il",
        licence="DomainNet: non-commercial research and education",
        places={
            "": "http://ai.bu.edu/M3SDA/ (cleaned version); the lists from https://github.com/NeurAI-Lab/DN4IL-dataset"
        },
        sizes={
            "sketch": (11416, 3269),
            "infograph": (9970, 2930),
            "painting": (11495, 3276),
            "quickdraw": (12500, 3500),
            "real": (12494, 3473),
            "clipart": (9205, 3016),
        },
    ),
    Entry(
        name="cifar100",
        title="Split CIFAR-100: five tasks of twenty new classes each (class-incremental)",
        kind="image",
        domains=tuple(f"task-{task}" for task in range(1, 6)),
        num_classes=100,
        loader="cifar",
        licence="none stated; published for research",
        places={"": "https://www.cs.toronto.edu/~kriz/cifar.html (cifar-100-binary.tar.gz)"},
        sizes={f"task-{task}": (10000, 2000) for task in range(1, 6)},
        incremental="class",
    ),
    Entry(
        name="glue",
        title="GLUE sequence: sentiment, duplicate questions, question answering",
        kind="text",
        domains=("sst2", "qqp", "qnli"),
        others=("mrpc",),
        classes=("no", "yes"),
        num_classes=2,
        loader="corpora",
        licence="QNLI CC BY-SA 4.0; QQP Quora's terms; MRPC Microsoft Research's; SST-2 states none",
        places={
            "": "https://gluebenchmark.com/tasks",
            "mrpc": "https://www.microsoft.com/en-us/download/details.aspx?id=52398",
        },
        sizes={"sst2": (67349, 872), "qqp": (363846, 40430), "qnli": (104743, 5463), "mrpc": (4076, 1725)},
        options=corpora.OPTIONS,
    ),
    Entry(
        name="fdu-mtl",
        title="FDU-MTL: reviews of sixteen kinds of goods and films, good or bad",
        kind="text",
        domains=("books", "electronics", "dvd", "kitchen"),
        others=tuple(corpora.FDU)[4:],
        classes=("bad", "good"),
        num_classes=2,
        loader="corpora",
        licence="none stated; published for research",
        places={"": "http://pfliu.com/paper/adv-mtl.html"},
        sizes={
            **{domain: (1600, 400) for domain in corpora.FDU},
            **{"electronics": (1598, 400), "camera": (1597, 400), "baby": (1500, 400)},
            **{"magazines": (1570, 400), "software": (1515, 400)},
        },
        options=corpora.OPTIONS,
    ),
    Entry(
        name="heart",
        title="Heart disease in four hospitals: 13 findings, ill or not",
        kind="table",
        domains=("cleveland", "hungary", "switzerland", "va"),
        classes=("healthy", "ill"),
        num_classes=2,
        loader="tables",
        licence="CC BY 4.0",
        places={"": "https://archive.ics.uci.edu/dataset/45/heart+disease (processed.*.data)"},
        sizes={
            "cleveland": (303, None),
            "hungary": (294, None),
            "switzerland": (123, None),
            "va": (200, None),
        },
    ),
    Entry(
        name="folders",
        title="Your own data: domain/class/image, site/domain/class/image, CSV or JSON lines",
        kind="image",
        domains=(),
        num_classes=0,
        loader="own",
        licence="the user's own data",
        places={},
        options=own.OPTIONS,
    ),
)
