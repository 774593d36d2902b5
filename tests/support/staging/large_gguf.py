"""Valid `glm-dsa` split sets of any size in seconds: true headers, data left sparse or filled with cheap noise."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from tests.support.tiny_gguf import _Tensors
from tests.support.tiny_metadata import write_metadata
from tests.support.tiny_spec import QuantMix, TinySpec
from tests.support.tiny_tokenizer import tiny_tokenizer

# FULL_SIZE has GLM-5's own sizes but three layers fewer, which makes 406 GB of Q4_K
SMALL = TinySpec(layers=3, experts=8, name="small")
TWO_GB = TinySpec(
    layers=8, dense_layers=1, experts=56, hidden=2048, q_lora=512, expert_intermediate=1280, name="two-gb"
)
FULL_SIZE = TinySpec(
    layers=75,
    heads=64,
    experts=256,
    experts_used=8,
    hidden=6144,
    q_lora=2048,
    dense_layers=3,
    dense_intermediate=12288,
    expert_intermediate=2048,
    context=202752,
    quants=QuantMix(down="Q4_K"),
    name="GLM-5-UD-Q4_K_XL",
)
COMPANIONS = {"config.json": b'{"model_type": "glm_moe_dsa"}\n', "tokenizer.json": b'{"version": "1.0"}\n'}


class _Nowhere(dict[str, Any]):
    """Takes everything, keeps nothing."""

    def __setitem__(self, key: str, value: Any) -> None:
        return None


class _Shapes(_Tensors):
    """The tensors of a model as shapes: arrays of the right size that take no memory."""

    def __init__(self, spec: TinySpec, vocab: int) -> None:
        super().__init__(spec, vocab)
        self.reference = _Nowhere()

    def _add(self, name: str, quant: str, shape: tuple[int, ...], deviation: float) -> Any:
        kind = Type[quant]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        dtype = np.float32 if quant == "F32" else np.uint8
        row = shape[-1] if quant == "F32" else shape[-1] // block * size
        self.packed[name] = (np.broadcast_to(np.zeros((), dtype), (*shape[:-1], row)), kind)
        return np.broadcast_to(np.zeros((), np.float32), shape)


@dataclass(frozen=True)
class SplitSet:
    """A written set; `sums` has the SHA-256 of each file once it was asked for."""

    folder: Path
    paths: tuple[Path, ...]

    @property
    def total_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    def digests(self) -> dict[str, str]:
        """SHA-256 by name of every file of the folder except the list itself."""
        paths = sorted(path for path in self.folder.iterdir() if path.name != "SHA256SUMS")
        return {path.name: digest_of(path) for path in paths}

    def write_sums(self) -> dict[str, str]:
        """Put a SHA256SUMS beside the files."""
        digests = self.digests()
        write_sums(self.folder, digests)
        return digests


def write_sums(folder: Path, digests: dict[str, str]) -> None:
    """Put a SHA256SUMS into `folder` by rename, from beside it: nobody meets half of it, or a file more."""
    text = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    fresh = folder.with_name(f"{folder.name}.SHA256SUMS")
    fresh.write_text(text)
    fresh.replace(folder / "SHA256SUMS")


def write_set(folder: Path, spec: TinySpec, splits: int, *, sparse: bool = False, seed: int = 0) -> SplitSet:
    """Write the model that `spec` describes as `splits` files with tokenizer and config beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = spec.tokenizer or tiny_tokenizer(spec.vocab)
    shapes = _Shapes(spec, len(tokenizer.tokens))
    shapes.draw()
    total = sum(array.nbytes for array, _ in shapes.packed.values())
    largest = max(array.nbytes for array, _ in shapes.packed.values())
    writer = gguf.GGUFWriter(
        folder / f"{spec.name}.gguf",
        "glm-dsa",
        split_max_size=0 if splits == 1 else max(largest, -(-total // splits)) + 4096,
    )
    write_metadata(writer, spec, tokenizer)
    for name, (array, kind) in shapes.packed.items():
        writer.add_tensor(name, array, raw_dtype=kind)
    # headers only: the writer's own data step would write every byte
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    for number, (file, tensors) in enumerate(zip(writer.fout, writer.tensors, strict=True)):
        file.flush()
        data_at = _aligned(file.tell())
        end = data_at + sum(_aligned(info.nbytes) for info in tensors.values())
        file.truncate(end)
        if not sparse:
            _fill(Path(file.name), data_at, end, seed + number)
    writer.close()
    for name, content in COMPANIONS.items():
        (folder / name).write_bytes(content)
    return SplitSet(folder, tuple(sorted(folder.glob(f"{spec.name}*.gguf"))))


def digest_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests_of(paths: Iterable[Path]) -> dict[str, str]:
    return {path.name: digest_of(path) for path in paths}


def _fill(path: Path, start: int, end: int, seed: int) -> None:
    """Noise that compresses badly and differs from file to file; 16 MiB of it, shifted each time."""
    noise = np.random.default_rng(seed).bytes((16 << 20) + 4096)
    with open(path, "r+b") as file:
        file.seek(start)
        for at in range(start, end, 16 << 20):
            shift = (at // (16 << 20)) % 4096
            file.write(memoryview(noise)[shift : shift + min(16 << 20, end - at)])


def _aligned(size: int) -> int:
    return -(-size // gguf.GGUF_DEFAULT_ALIGNMENT) * gguf.GGUF_DEFAULT_ALIGNMENT
