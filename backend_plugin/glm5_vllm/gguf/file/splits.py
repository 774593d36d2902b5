"""Open a model: one file or a set of splits, whichever split is named, merged into one tensor index.

A set that is not complete and of one model is refused here. Next: model/ and plan/.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from glm5_vllm.gguf.errors import GGUFError, unreadable
from glm5_vllm.gguf.file.header import ArrayValue, Header, MetadataValue, TensorInfo, read_header
from glm5_vllm.gguf.file.pieces import refuse_piece, refuse_pieces_in
from glm5_vllm.gguf.printable import NAME_LIMIT, printable

SPLIT_NAME = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
KEY_NUMBER, KEY_COUNT, KEY_TENSORS = "split.no", "split.count", "split.tensors.count"


@dataclass(frozen=True, slots=True)
class Model:
    """A complete model; `files` in the order of the splits, metadata that of the first."""

    path: Path
    files: tuple[Header, ...]
    tensors: Mapping[str, TensorInfo]

    @property
    def header(self) -> Header:
        """The header that carries the model's metadata."""
        return self.files[0]

    @property
    def metadata(self) -> Mapping[str, MetadataValue]:
        return self.header.metadata

    @property
    def architecture(self) -> str:
        """The architecture in the metadata, printable."""
        return printable(self.metadata.get("general.architecture", "unknown"), NAME_LIMIT)

    @property
    def name(self) -> str:
        """The name in the metadata, or the file's, printable."""
        name = self.metadata.get("general.name")
        return printable(name if isinstance(name, str) and name.strip() else self.path.stem, NAME_LIMIT)


def open_model(path: str | os.PathLike[str]) -> Model:
    """Open the model at `path`: a single file, any one of its splits, or a folder that holds one model.

    Raises:
        GGUFError: no or several models, raw pieces of a file, a broken file, or a split that is missing, doubled or
            of another model.
    """
    path = Path(path)
    try:
        paths = _split_paths(_only_model(path) if path.is_dir() else path)
    except (OSError, ValueError) as error:
        # such as a name longer than the file system allows, or a NUL in it
        raise unreadable(path, error) from error
    headers = tuple(read_header(each) for each in paths)
    if len(headers) == 1:
        _check_alone(headers[0])
    else:
        _check_set(headers)
    return Model(path, headers, _merge(headers))


def _only_model(folder: Path) -> Path:
    """The one model in `folder`, as the path of one of its files."""
    models: dict[str, Path] = {}
    for file in sorted(folder.glob("*.gguf")):
        match = SPLIT_NAME.fullmatch(file.name)
        models.setdefault(f"{match['prefix']}-of-{match['count']}" if match else file.name, file)
    if len(models) == 1:
        return next(iter(models.values()))
    if not models:
        refuse_pieces_in(folder)
    found = ", ".join(sorted(file.name for file in models.values())) or "no .gguf file"
    raise GGUFError(
        f"folder {folder} must hold one model",
        found,
        expected="exactly one",
        remedy="Name the model's file instead",
    )


def _split_paths(path: Path) -> list[Path]:
    """Every file of the model that `path` belongs to, in order."""
    match = SPLIT_NAME.fullmatch(path.name)
    if match is None:
        refuse_piece(path)
        return [path]
    count = int(match["count"])
    paths = [path.with_name(f"{match['prefix']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]
    if not 1 <= int(match["number"]) <= count:
        raise GGUFError(
            "split number in the file name",
            path.name,
            expected=f"1 to {count}",
            remedy="Restore the original name",
        )
    missing = [each.name for each in paths if not each.exists()]
    if missing:
        raise GGUFError(
            f"{len(missing)} of {count} splits are missing",
            ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else ""),
            expected=f"all of them in {path.parent}",
            remedy="Fetch the missing files",
        )
    return paths


def _check_alone(header: Header) -> None:
    count = header.metadata.get(KEY_COUNT, 1)
    if count not in (0, 1):
        raise GGUFError(
            f"{header.path.name} is one of several splits by its metadata",
            f"{KEY_COUNT} {count}",
            expected="a complete file",
            remedy="Give the files their original names, NAME-00001-of-0000N.gguf",
        )


def _check_set(headers: tuple[Header, ...]) -> None:
    first = headers[0]
    for number, header in enumerate(headers):
        name = header.path.name
        if header.metadata.get(KEY_COUNT) != len(headers):
            raise _foreign(header, KEY_COUNT, header.metadata.get(KEY_COUNT, "missing"), len(headers))
        if header.metadata.get(KEY_NUMBER) != number:
            raise GGUFError(
                f"{name} is not the split its name says: {KEY_NUMBER}",
                header.metadata.get(KEY_NUMBER, "missing"),
                expected=str(number),
                remedy="One split lies there twice or under a wrong name: fetch it again",
            )
        for key, value in header.metadata.items():
            of_first = first.metadata.get(key, value)
            if key != KEY_NUMBER and not isinstance(value, ArrayValue) and value != of_first:
                raise _foreign(header, key, value, of_first)
    total = sum(len(header.tensors) for header in headers)
    expected = first.metadata.get(KEY_TENSORS)
    if total != expected:
        raise GGUFError(
            f"{first.path.name}: tensors in its {len(headers)} splits",
            total,
            expected=f"{KEY_TENSORS} {expected}",
            remedy="A split belongs to another model: fetch the set again",
        )


def _foreign(header: Header, key: str, value: object, expected: object) -> GGUFError:
    return GGUFError(
        f"{header.path.name} is a split of another model: {key}",
        value,
        expected=f"{expected} as in the first split",
        remedy="Fetch the set again",
    )


def _merge(headers: tuple[Header, ...]) -> dict[str, TensorInfo]:
    index: dict[str, TensorInfo] = {}
    for header in headers:
        for tensor in header.tensors:
            other = index.setdefault(tensor.name, tensor)
            if other is not tensor:
                raise GGUFError(
                    f"tensor {tensor.name} lies in two splits",
                    f"{other.path.name} and {tensor.path.name}",
                    expected="each tensor once",
                    remedy="Fetch the set again",
                )
    return index
