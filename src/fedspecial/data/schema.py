"""What a model needs to know about its inputs, stored with the run as schema.json.

Class names, input shape, normalisation, and how the cells of a table or the words of a text become numbers. Other data
is matched with it by name before the model is tested on it, and new files become inputs exactly as in training
(`fedspecial.data.inputs`). Needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from fedspecial.core.files import write_atomic
from fedspecial.errors import InputError

FILE = "schema.json"
FORMAT = 1

Kind = Literal["image", "text", "table", "other"]


@dataclass(frozen=True)
class Column:
    """A column of a table: a number, or one of `categories`, each of which becomes an input that is 0 or 1."""

    name: str
    categories: tuple[str, ...] | None = None
    zero_is_missing: bool = False

    @property
    def inputs(self) -> int:
        return 1 if self.categories is None else len(self.categories)


@dataclass(frozen=True)
class TableEncoding:
    """How the rows of a table become inputs: the columns, then indicators of missing values, standardised.

    indicators: the inputs (counted from 0) that have an indicator, which is 1 where the value is missing
    mean, std:  of every input, indicators included: (value − mean) / std
    fill:       what replaces a missing value of a row that belongs to no client; None if none is missing in the data
    limit:      standardised values beyond ±limit are set to it; None if there is no limit
    """

    columns: tuple[Column, ...]
    indicators: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fill: tuple[float, ...] | None = None
    limit: float | None = None


@dataclass(frozen=True)
class TextEncoding:
    """How a text becomes token ids: hashed words, or the tokenizer of a pretrained model.

    column: the field of a JSON line that has the text
    """

    vocab: int = 2**14
    length: int = 128
    ngrams: int = 1
    tokenizer: str | None = None
    encoder: str | None = None
    column: str = "text"

    @staticmethod
    def of(options: Mapping[str, Any]) -> TextEncoding:
        """From the options of a text benchmark."""
        tokenizer, encoder = (str(options[key]) if options[key] else None for key in ("tokenizer", "encoder"))
        vocab, length, ngrams = (int(options[key]) for key in ("vocab", "length", "ngrams"))
        return TextEncoding(vocab, length, ngrams, tokenizer, encoder, str(options.get("text_column", "text")))


@dataclass(frozen=True)
class DataSchema:
    """The inputs and classes of a model.

    classes:     names in the order of the model's outputs; None if the targets are not classes
    input_shape: of one sample: channels×height×width, features, or tokens; None for dict and tuple inputs
    dtype:       of the stored samples; "uint8" images are normalised to (x/255 − mean)/std per channel
    table, text: how rows and texts become inputs; None if the samples were given as arrays
    """

    kind: Kind
    classes: tuple[str, ...] | None
    input_shape: tuple[int, ...] | None
    dtype: str | None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    table: TableEncoding | None = None
    text: TextEncoding | None = None

    @property
    def image_size(self) -> int | None:
        """The side of square images; None for anything else."""
        shape = self.input_shape
        if self.kind != "image" or shape is None or len(shape) != 3 or shape[1] != shape[2]:
            return None
        return shape[1]

    def describe(self) -> list[str]:
        """The inputs and the classes, a line each, for the model card."""
        inputs = f"{self.kind}, {describe_shape(self.input_shape)} of {self.dtype}"
        if self.mean is not None and self.std is not None:
            mean, std = (", ".join(f"{value:g}" for value in values) for values in (self.mean, self.std))
            inputs += f", normalised with mean {mean} and standard deviation {std}"
        elif self.table is not None:
            inputs += f", from the columns {', '.join(column.name for column in self.table.columns)}"
        elif self.text is not None:
            tokenizer = self.text.tokenizer or self.text.encoder
            how = f"the tokenizer {tokenizer}" if tokenizer else f"words hashed to {self.text.vocab} ids"
            inputs += f", {self.text.length} tokens: {how}"
        lines = [f"Inputs (`{FILE}`): {inputs}"]
        if self.classes is not None:
            lines.append(f"Classes, in the order of the outputs: {', '.join(self.classes)}")
        return lines

    def write(self, folder: Path) -> None:
        content = json.dumps({"format": FORMAT, **asdict(self)}, indent=1, ensure_ascii=False)
        write_atomic(folder / FILE, f"{content}\n".encode())

    @staticmethod
    def read(folder: str | Path) -> DataSchema:
        """The schema of a run."""
        path = Path(folder) / FILE
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            version = found.pop("format")
            if version == FORMAT:
                return TypeAdapter(DataSchema).validate_python(found)
        except FileNotFoundError:
            raise InputError(
                f"{folder}: it has no {FILE}, which names the classes and inputs of the model; the run has not begun, "
                "or an earlier version of fedspecial made it"
            ) from None
        except (ValueError, KeyError, AttributeError, OSError):
            raise InputError(f"{path}: it was cut off or changed") from None
        raise InputError(f"{path}: format {version}; this version of fedspecial reads format {FORMAT} only")


def describe_shape(shape: tuple[int, ...] | None) -> str:
    return "×".join(map(str, shape)) if shape else "no fixed shape"
