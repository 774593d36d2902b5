"""Read tensor bytes from a model's files, whole or by rows. Knows offsets, not what the bytes mean.

Reads carry their own position, so many threads may share a reader. Next: values/ or the loader.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import torch

from glm5_vllm.gguf.errors import GGUFError, unreadable
from glm5_vllm.gguf.file.header import TensorInfo
from glm5_vllm.gguf.file.splits import Model

# the kernel returns at most 2 GiB a call; smaller steps let other threads at the disk
_BYTES_AT_ONCE = 64 << 20


class TensorReader:
    """The open files of one model; a context manager."""

    def __init__(self, model: Model) -> None:
        self._descriptors: dict[Path, int] = {}
        try:
            for header in model.files:
                self._descriptors[header.path] = os.open(header.path, os.O_RDONLY)
        except OSError as error:
            self.close()
            raise unreadable(error.filename, error) from error

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def read_into(self, tensor: TensorInfo, start: int, out: torch.Tensor) -> None:
        """Fill `out` with the tensor's bytes from byte `start` on.

        Args:
            tensor: the tensor.
            start: counted from the tensor's first byte.
            out: uint8, contiguous, on the CPU; its size says how many bytes are read.

        Raises:
            GGUFError: the range leaves the tensor, or the file is shorter than it was.
        """
        if start < 0 or start + out.numel() > tensor.nbytes:
            raise GGUFError(
                f"byte range of tensor {tensor.name}",
                f"{start} to {start + out.numel()}",
                expected=f"within its {tensor.nbytes} bytes",
            )
        view = memoryview(out.view(-1).numpy())  # type: ignore[arg-type]
        done = 0
        for offset, count in _runs(tensor, start, len(view)):
            self._read_run(tensor, offset, view[done : done + count])
            done += count

    def _read_run(self, tensor: TensorInfo, offset: int, out: memoryview) -> None:
        done = 0
        while done < len(out):
            part = out[done : done + _BYTES_AT_ONCE]
            count = os.preadv(self._descriptors[tensor.path], [part], offset + done)
            if count == 0:
                raise GGUFError(f"{tensor.path.name} became shorter while tensor {tensor.name} was read")
            done += count

    def raw(self, tensor: TensorInfo) -> torch.Tensor:
        """All bytes of a tensor, uint8 [*shape[:-1], row_bytes]."""
        out = torch.empty(*tensor.shape[:-1], tensor.row_bytes, dtype=torch.uint8)
        self.read_into(tensor, 0, out)
        return out

    def rows(self, tensor: TensorInfo, start: int, stop: int) -> torch.Tensor:
        """Rows `start` to `stop` of a tensor, uint8 [stop - start, row_bytes].

        The rows of all leading dimensions count through: row r of expert e of [experts, rows, columns] is
        e * rows + r.
        """
        out = torch.empty(stop - start, tensor.row_bytes, dtype=torch.uint8)
        self.read_into(tensor, start * tensor.row_bytes, out)
        return out


def _runs(tensor: TensorInfo, start: int, length: int) -> Iterator[tuple[int, int]]:
    """(offset in the file, bytes) of the runs that hold `length` bytes of a tensor from byte `start` on."""
    if tensor.matrix_stride is None:
        yield tensor.offset + start, length
        return
    matrix_bytes = tensor.nbytes // tensor.shape[0]
    while length:
        matrix, within = divmod(start, matrix_bytes)
        count = min(matrix_bytes - within, length)
        yield tensor.offset + matrix * tensor.matrix_stride + within, count
        start, length = start + count, length - count
