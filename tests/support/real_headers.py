"""Headers of published GLM-5 files as sparse files: names, shapes, types, order, cuts and keys of the originals.

Their figures lie in tests/data/real_headers.json, with the place where each was published. Tokenizer keys are left out:
config.json and tokenizer.json stand beside the files instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
from gguf import GGUFValueType as Type

from tests.support.raw_gguf import Array, RawGGUF, RawTensor

HEADERS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data/real_headers.json").read_text(encoding="utf-8")
)
PUBLISHED = [name for name, header in HEADERS.items() if "splits" in header]
LAYERS, BLOCKS = 78, 79
# the 21 layers of 78 that run an indexer in config.json of GLM-5.2 and 5.3
RUN_INDEXER = (0, 1, 2, *range(6, 75, 4))
_KINDS = {
    "str": Type.STRING,
    "u32": Type.UINT32,
    "u16": Type.UINT16,
    "i32": Type.INT32,
    "f32": Type.FLOAT32,
    "bool": Type.BOOL,
}
_NORM_BYTES = 512


def write_header(
    folder: Path,
    published: str,
    changes: Mapping[str, object] = {},
    *,
    drop: Sequence[str] = (),
    copied_layers: Sequence[int] | None = None,
    single_file: bool = False,
) -> Path:
    """Write one published set, changed; returns its first file.

    Args:
        folder: where the files go.
        published: a key of PUBLISHED.
        changes: metadata key -> value; None takes it out.
        drop: names of tensors that are left out.
        copied_layers: layers whose indexer norm holds the bytes of the layer before; None leaves zeros everywhere.
        single_file: write one file instead of the published cuts.
    """
    header = HEADERS[published]
    tensors = [each for each in _tensors(header["classes"]) if each.name not in drop]
    cuts = [len(tensors)] if single_file else [split["tensors"] for split in header["splits"]]
    name = published.replace(" ", "-")
    for companion in ("config.json", "tokenizer.json"):
        (folder / companion).write_text("{}")
    paths, start = [], 0
    for number, count in enumerate(cuts):
        raw = RawGGUF(metadata=_metadata(header["kv"], changes) if number == 0 else {})
        if len(cuts) > 1:
            raw.metadata |= {
                "split.no": (Type.UINT16, number),
                "split.count": (Type.UINT16, len(cuts)),
                "split.tensors.count": (Type.INT32, len(tensors)),
            }
        path = folder / (
            f"{name}-{number + 1:05d}-of-{len(cuts):05d}.gguf" if len(cuts) > 1 else f"{name}.gguf"
        )
        _write(path, raw, tensors[start : start + count], copied_layers)
        paths.append(path)
        start += count
    return paths[0]


def _write(path: Path, raw: RawGGUF, tensors: list[RawTensor], copied: Sequence[int] | None) -> None:
    end = 0
    for tensor in tensors:
        tensor.offset = end
        end += -(-_nbytes(tensor) // raw.alignment) * raw.alignment
    raw.tensors = tensors
    raw.write(path)
    data_start = path.stat().st_size
    os.truncate(path, data_start + end)
    if copied is None:
        return
    with path.open("r+b") as file:
        for tensor in tensors:
            if tensor.name.endswith("indexer.k_norm.weight"):
                layer = int(tensor.name.split(".")[1])
                while layer in copied:
                    layer -= 1
                file.seek(data_start + (tensor.offset or 0))
                file.write(bytes((layer + i) % 256 for i in range(_NORM_BYTES)))


def _metadata(keys: Mapping[str, Any], changes: Mapping[str, object]) -> dict[str, tuple[Type, Any]]:
    metadata: dict[str, tuple[Type, Any]] = {}
    for key, entry in keys.items():
        if entry["type"].startswith("arr"):
            metadata[key] = (Type.ARRAY, Array(Type.STRING, entry["value"]))
        else:
            # the dump shows the one boolean as 1
            kind = Type.BOOL if key.endswith("expert_weights_norm") else _KINDS[entry["type"]]
            metadata[key] = (kind, entry["value"])
    for key, value in changes.items():
        if value is None:
            metadata.pop(key, None)
        elif isinstance(value, Array):
            metadata[key] = (Type.ARRAY, value)
        else:
            kind = (
                Type.STRING
                if isinstance(value, str)
                else Type.FLOAT32
                if isinstance(value, float)
                else Type.UINT32
            )
            metadata[key] = (kind, value)
    return metadata


def _tensors(classes: Sequence[Mapping[str, Any]]) -> list[RawTensor]:
    """Those without a block first, then by block, names in order."""
    found = []
    for each in classes:
        first, _, last = (each["layers"] or "").partition("-")
        layers = range(int(first), int(last or first) + 1) if each["layers"] else [None]
        for layer in layers:
            quant = each.get("exceptions", {}).get(str(layer), each["type"])
            kind = int(gguf.GGMLQuantizationType[quant])
            name = each["name"] if layer is None else each["name"].format(layer)
            found.append(
                (-1 if layer is None else layer, RawTensor(name, tuple(each["dims"][::-1]), kind, b""))
            )
    return [tensor for _, tensor in sorted(found, key=lambda each: (each[0], each[1].name))]


def _nbytes(tensor: RawTensor) -> int:
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.type_id)]
    elements = 1
    for each in tensor.shape:
        elements *= each
    return elements // int(block) * int(size)
