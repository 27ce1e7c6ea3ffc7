"""VLCS: five classes in four photo collections, read from DomainBed's folders, with a fixed 70/30 split."""

from __future__ import annotations

from fedspecial.data.entry import Entry
from fedspecial.data.loading.image_domains import DOMAINBED, PublishedTree

_TREE = PublishedTree(name="vlcs", folder="VLCS", classes=("bird", "car", "chair", "dog", "person"))

ENTRY = Entry(
    name=_TREE.name,
    title="VLCS: five classes in four photo collections",
    kind="image",
    domains=("Caltech101", "LabelMe", "SUN09", "VOC2007"),
    classes=_TREE.classes,
    num_classes=5,
    licence="none stated; published for research",
    load=_TREE.load,
    files=_TREE.files,
    count=_TREE.count,
    sources={"": DOMAINBED},
    sizes={
        "Caltech101": (1415, None),
        "LabelMe": (2656, None),
        "SUN09": (3282, None),
        "VOC2007": (3376, None),
    },
    options={"folder": _TREE.folder},
)
