"""Markdown extension: formulas become MathML when the site is built, so that a page needs no script and no font.

`pymdownx.arithmatex` (with `generic: true`) finds `$…$` and `$$…$$`; this extension converts what it found.
A formula that cannot be converted stops the build.
"""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert_to_element
from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor


class FormulasToMathML(Treeprocessor):
    def run(self, root: Element) -> None:
        for element in root.iter():
            if element.get("class") == "arithmatex":
                tex = (element.text or "").strip()[2:-2]  # arithmatex wraps the source in \( \) or \[ \]
                element.text = None
                element.append(convert_to_element(tex, display="block" if element.tag == "div" else "inline"))


class MathMLExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        # Below 20, the priority of inline patterns, which find the formulas.
        md.treeprocessors.register(FormulasToMathML(md), "mathml", 12)


def makeExtension(**options: Any) -> MathMLExtension:  # noqa: N802
    return MathMLExtension(**options)
