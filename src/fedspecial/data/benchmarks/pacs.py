"""PACS: seven classes in four styles, read from DomainBed's folders, with a fixed 70/30 split per domain and seed."""

from __future__ import annotations

from fedspecial.data.entry import Entry
from fedspecial.data.loading.image_domains import DOMAINBED, PublishedTree

_TREE = PublishedTree(
    name="pacs", folder="PACS", classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
)

ENTRY = Entry(
    name=_TREE.name,
    title="PACS: seven classes as sketches, cartoons, photographs and paintings",
    kind="image",
    domains=("sketch", "cartoon", "photo", "art_painting"),
    classes=_TREE.classes,
    num_classes=7,
    licence="none stated; published for research",
    load=_TREE.load,
    files=_TREE.files,
    count=_TREE.count,
    sources={"": DOMAINBED},
    sizes={
        "sketch": (3929, None),
        "cartoon": (2344, None),
        "photo": (1670, None),
        "art_painting": (2048, None),
    },
    options={"folder": _TREE.folder},
)
