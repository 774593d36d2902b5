"""Checks and times the expert kernels on one card: python -m tests.bench.experts OUT.json [SECONDS]

Needs torch, Triton and the gguf package. Times are of whole calls (sorting and the sum counted) inside a CUDA graph over
rotating inputs, in microseconds; `bytes_us` is the time that the weights of the experts hit take at the card's copy rate.
Errors are relative to float32 on the dequantised weights, beside those of bfloat16 weights and activations.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import torch
import triton

from glm5_vllm.experts.kernels.configs import LaunchConfig, Tile, choose
from glm5_vllm.experts.launch import packed_experts
from glm5_vllm.experts.layouts import LAYOUTS
from glm5_vllm.experts.pack import pack
from glm5_vllm.experts.reference import routed_experts
from glm5_vllm.gguf.file.quant_types import BY_NAME, QuantType
from glm5_vllm.gguf.values.dequant import dequantize
from tests.support.cuda_time import copy_rate, graph_us
from tests.support.random_blocks import SCALE_FIELDS

DEVICE = torch.device("cuda")
EXPERTS, HIDDEN, TOPK = 256, 6144, 8
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192)
# gate and up, down: of the published mixes, and Q8_0
PAIRS = (
    ("Q4_K", "Q5_K"), ("Q4_K", "Q6_K"), ("Q5_K", "Q6_K"), ("IQ3_S", "IQ4_XS"), ("IQ3_XXS", "IQ4_XS"), ("Q8_0", "Q8_0"),
)  # fmt: skip
PROCESSES = 15
CHECKED_ROWS = (1, 3, 8, 33, 130, 600, 1100)


# what the table's entries were chosen from, timed with `TILES_OF`
TILES_OF = PAIRS[1]
TILES = {
    1: [
        *(LaunchConfig(False, 16, Tile(1, 4, 3), splits, Tile(1, 4, 1), 1) for splits in (4, 6, 8)),
        LaunchConfig(False, 16, Tile(1, 4, 4), 6, Tile(1, 4, 2), 3),
        LaunchConfig(False, 16, Tile(2, 4, 3), 8, Tile(1, 4, 1), 1),
    ],
    8: [
        *(LaunchConfig(False, 16, Tile(1, 4, 3), splits, Tile(1, 4, 2), 8) for splits in (1, 2)),
        LaunchConfig(False, 16, Tile(2, 4, 3), 2, Tile(1, 4, 2), 8),
        LaunchConfig(False, 16, Tile(1, 4, 4), 1, Tile(1, 4, 2), 8),
        LaunchConfig(False, 16, Tile(1, 4, 3), 1, Tile(1, 4, 3), 8),
        LaunchConfig(False, 16, Tile(1, 4, 3), 1, Tile(1, 4, 2), 4),
        *(LaunchConfig(True, 16, Tile(1, 4, 3), splits, Tile(1, 4, 3), 8) for splits in (1, 2)),
    ],
    64: [
        *(
            LaunchConfig(True, 16, Tile(tiles, 4, stages), 1, Tile(1, 4, 3), 8)
            for tiles, stages in ((2, 3), (1, 3), (2, 2), (1, 4), (2, 4))
        ),
        *(
            LaunchConfig(True, 16, Tile(2, 4, 3), 1, Tile(tiles, 4, stages), steps)
            for tiles, stages, steps in ((1, 3, 12), (1, 4, 8), (2, 3, 6), (1, 3, 16))
        ),
    ],
    512: [
        *(
            LaunchConfig(True, 32, gate_up, 1, Tile(1, 4, 3), 16)
            for gate_up in (Tile(2, 4, 3), Tile(2, 4, 2), Tile(1, 4, 3), Tile(4, 8, 3))
        ),
        LaunchConfig(True, 64, Tile(2, 4, 2), 1, Tile(1, 4, 3), 24),
        LaunchConfig(True, 32, Tile(2, 4, 3), 1, Tile(1, 4, 3), 24),
        LaunchConfig(True, 32, Tile(2, 4, 3), 1, Tile(2, 4, 3), 8),
    ],
    8192: [
        *(
            LaunchConfig(True, 64, gate_up, 1, Tile(1, 4, 3), 24)
            for gate_up in (Tile(4, 8, 3), Tile(4, 8, 2), Tile(2, 4, 2), Tile(2, 4, 3))
        ),
        LaunchConfig(True, 64, Tile(4, 8, 3), 1, Tile(2, 8, 3), 12),
        LaunchConfig(True, 128, Tile(2, 8, 2), 1, Tile(2, 8, 2), 12),
        LaunchConfig(True, 128, Tile(2, 8, 2), 1, Tile(1, 4, 2), 24),
        LaunchConfig(True, 64, Tile(4, 8, 3), 1, Tile(1, 4, 2), 48),
    ],
}


def random_blocks(experts: int, rows: int, columns: int, quant: QuantType, deviation: float) -> torch.Tensor:
    """uint8 [experts, rows, bytes of a row] of random bits, whose values have about this deviation."""
    fields = SCALE_FIELDS[gguf.GGMLQuantizationType[quant.name]]
    count = experts * rows * columns // quant.block_elements
    blocks = torch.randint(0, 256, (count, quant.block_bytes), dtype=torch.uint8, device=DEVICE)

    def scaled(of: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        of[:, fields.scale : fields.scale + 2] = steps.half().view(torch.uint8).view(-1, 2)
        if fields.minimum is not None:
            minima = (steps * fields.ratio).half()
            of[:, fields.minimum : fields.minimum + 2] = minima.view(torch.uint8).view(-1, 2)
        return of

    sample = scaled(blocks[:2048].clone(), torch.ones(2048, device=DEVICE))
    unit = float(dequantize(sample, quant, (2048, quant.block_elements)).std())
    steps = (torch.rand(count, device=DEVICE) + 0.5) * (deviation / unit)
    return scaled(blocks, steps).view(experts, rows, -1)


@dataclass
class Experts:
    """One layer's experts on the card."""

    types: tuple[QuantType, QuantType]
    raw: tuple[torch.Tensor, torch.Tensor]
    packed: tuple[torch.Tensor, torch.Tensor]
    pack_seconds: float

    @classmethod
    def random(cls, names: tuple[str, str], intermediate: int, experts: int = EXPERTS) -> Experts:
        types = BY_NAME[names[0]], BY_NAME[names[1]]
        raw = (
            random_blocks(experts, 2 * intermediate, HIDDEN, types[0], 0.02),
            random_blocks(experts, HIDDEN, intermediate, types[1], 0.02),
        )
        torch.cuda.synchronize()
        begun = time.monotonic()
        packed = pack(raw[0], types[0], gate_and_up=True), pack(raw[1], types[1], gate_and_up=False)
        torch.cuda.synchronize()
        return cls(types, raw, packed, time.monotonic() - begun)

    @property
    def intermediate(self) -> int:
        return self.packed[1].shape[2] * 256

    def floats(self, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        gate_up = dequantize(self.raw[0][expert], self.types[0], (2 * self.intermediate, HIDDEN))
        return gate_up, dequantize(self.raw[1][expert], self.types[1], (HIDDEN, self.intermediate))


@dataclass
class Inputs:
    x: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor


def inputs(rows: int, experts: int, skew: float = 0.0) -> Inputs:
    """Random rows and their routing; with `skew`, expert i is chosen with a weight of (i + 1) ** -skew."""
    x = torch.randn(rows, HIDDEN, device=DEVICE).bfloat16()
    noise = -torch.log(-torch.log(torch.rand(rows, experts, device=DEVICE).clamp(1e-7, 1 - 1e-7)))
    bias = -skew * torch.log(torch.arange(1, experts + 1, device=DEVICE, dtype=torch.float32))
    ids = (noise + bias[torch.randperm(experts, device=DEVICE)]).topk(TOPK, 1).indices.int()
    return Inputs(x, torch.rand(rows, TOPK, device=DEVICE), ids)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def check(of: Experts, rows: int, config: LaunchConfig | None = None) -> dict[str, Any]:
    """Errors of the kernels and of bfloat16, on few experts; some pairs have no expert, and outputs start as NaN."""
    experts = len(of.packed[0])
    case = inputs(rows, experts)
    if rows > 1:
        case.ids[torch.rand(rows, TOPK, device=DEVICE) < 0.1] = -1
    floats = [torch.stack(weights) for weights in zip(*map(of.floats, range(experts)), strict=True)]
    poison = [torch.full((1 << 27,), float("nan"), dtype=torch.float16, device=DEVICE) for _ in range(2)]
    del poison
    out = packed_experts(case.x, of.packed, case.weights, case.ids, of.types, config)
    again = packed_experts(case.x, of.packed, case.weights, case.ids, of.types, config)
    expected = routed_experts(case.x, *floats, case.weights, case.ids)
    rounded = routed_experts(case.x, *(f.bfloat16() for f in floats), case.weights, case.ids).bfloat16()
    return {
        "gate_up": of.types[0].name, "down": of.types[1].name, "intermediate": of.intermediate, "rows": rows,
        "error": relative(out, expected), "error_of_bfloat16_weights": relative(rounded, expected),
        "is_same_again": bool(torch.equal(out, again)),
    }  # fmt: skip


def checked(case: tuple[tuple[str, str], int, int]) -> dict[str, Any]:
    names, intermediate, rows = case
    return check(Experts.random(names, intermediate, 16), rows)


def timed(
    of: Experts, rows: int, rate: float, config: LaunchConfig | None = None, skew: float = 0.0
) -> dict[str, Any]:
    experts = len(of.packed[0])
    count = 16 if rows <= 8 else 6 if rows <= 64 else 3 if rows <= 512 else 1
    cases = [inputs(rows, experts, skew) for _ in range(count)]
    config = config or choose(rows, HIDDEN, of.intermediate, of.types, torch.cuda.get_device_capability())

    def call(case: Inputs) -> torch.Tensor:
        return packed_experts(case.x, of.packed, case.weights, case.ids, of.types, config)

    hit = sum(case.ids.unique().numel() for case in cases) / count
    read = hit * sum(raw[0].nbytes for raw in of.raw) + 2 * cases[0].x.nbytes
    return {
        "gate_up": of.types[0].name, "down": of.types[1].name, "intermediate": of.intermediate, "rows": rows,
        "skew": skew, "experts_hit": round(hit, 1), "us": round(graph_us(call, cases), 2),
        "bytes_us": round(read / rate * 1e6, 1), "config": asdict(config),
    }  # fmt: skip


class Results:
    """What was measured so far, written after each row, until the time is up."""

    def __init__(self, out: Path, seconds: float) -> None:
        self._out, self._begun, self._seconds = out, time.monotonic(), seconds
        self.rate = copy_rate()
        self.rows: dict[str, Any] = {
            "device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
            "command": "python -m tests.bench.experts OUT.json", "copy_bytes_a_second": self.rate,
            "bits_a_weight": {quant.name: layout.bits_a_weight for quant, layout in LAYOUTS.items()},
            "checks": [], "tiles": [], "times": [], "packing": [],
        }  # fmt: skip

    def note(self, kind: str, measure: Callable[[], dict[str, Any]]) -> None:
        if time.monotonic() - self._begun > self._seconds:
            return
        row = measure()
        self.rows[kind].append(row)
        self._out.write_text(json.dumps(self.rows, indent=1) + "\n")
        print(kind, {key: value for key, value in row.items() if key != "config"}, flush=True)


def check_all(results: Results) -> None:
    # in processes of their own, because each compiles its kernels
    cases = [(names, 256) for names in PAIRS] + [(PAIRS[1], wider) for wider in (512, 2048)]
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        for row in pool.map(checked, [(*case, rows) for case in cases for rows in CHECKED_ROWS]):
            results.note("checks", partial(dict, row))


def time_pair(results: Results, names: tuple[str, str]) -> None:
    of = Experts.random(names, 256)
    size = sum(raw.nbytes for raw in of.raw)
    packing = {"gate_up": names[0], "down": names[1], "seconds": round(of.pack_seconds, 3), "bytes": size}
    results.note("packing", partial(dict, packing))
    for rows in ROWS:
        results.note("times", partial(timed, of, rows, results.rate))
    for rows in ROWS if names == TILES_OF else ():
        results.note("times", partial(timed, of, rows, results.rate, skew=1.0))


def main(out: Path, seconds: float) -> int:
    torch.manual_seed(0)
    results = Results(out, seconds)
    check_all(results)
    of = Experts.random(TILES_OF, 256)
    for rows, configs in TILES.items():
        for config in configs:
            results.note("tiles", partial(timed, of, rows, results.rate, config))
    for names in PAIRS:
        time_pair(results, names)
    for intermediate in (512, 2048):
        of = Experts.random(PAIRS[0], intermediate)
        for rows in (1, 8, 64, 512, 8192):
            results.note("times", partial(timed, of, rows, results.rate))
    checks = results.rows["checks"]
    worst = max(row["error"] / row["error_of_bfloat16_weights"] for row in checks)
    print(f"largest error {worst:.2f} times that of bfloat16 weights")
    return 0 if worst <= 1 and all(row["is_same_again"] for row in checks) else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 600))
