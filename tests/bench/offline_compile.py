"""Compiles every kernel configuration the table can choose for cards that are not here: offline_compile.py [OUT.json]

Needs Triton alone (requirements/triton.txt), no torch and no card. Reports registers, stack (spills), shared memory and
the resident programs of a multiprocessor; exits with 1 if one spills or does not fit.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from glm5_vllm.attention.kernels.configs import (
    ARCHITECTURES,
    BATCH_INVARIANT_SPLITS,
    MAX_SPLITS,
    KVFormat,
    LaunchConfig,
    Tile,
    choose,
)
from glm5_vllm.attention.kernels.sparse_mla import attend_kernel
from glm5_vllm.attention.kernels.sparse_mla_fp8 import attend_fp8_kernel
from glm5_vllm.attention.kernels.splits import merge_kernel
from glm5_vllm.indexer.kernels import gathered_logits_kernel, paged_logits_kernel

# capability: (shared memory a program may have, shared memory of a multiprocessor, its registers, multiprocessors)
LIMITS = {
    80: (166_912, 167_936, 65_536, 108),
    89: (101_376, 102_400, 65_536, 142),
    100: (232_448, 233_472, 65_536, 148),
    120: (101_376, 102_400, 65_536, 188),
}
RESERVED_SHARED = 1024  # by the driver, a program
INTEGERS = [
    "heads",
    "width",
    "table_width",
    "block_stride_rows",
    *("q_latent_row", "q_latent_head", "q_rope_row", "q_rope_head"),
    *("kv_row", "index_row", "table_row"),
]
DIVISIBLE = {
    "width",
    "q_latent_row",
    "q_latent_head",
    "q_rope_row",
    "q_rope_head",
    "index_row",
    "block_bytes",
}
POINTERS = {
    "index": "*i32",
    "counts": "*i32",
    "block_table": "*i32",
    "request_of_row": "*i32",
    "slots": "*i32",
}
PARTS = {"lse": "*fp32", "part_out": "*fp32", "part_lse": "*fp32"}


INDEXER = {
    "indexer gathered": (
        gathered_logits_kernel,
        {"q": "*fp8e4nv", "keys": "*fp8e4nv", "scales": "*fp32", "weights": "*fp32", "first": "*i32"}
        | {"last": "*i32", "logits": "*fp32", "rows": "i32", "logits_row": "i32"},
        {"HEADS": 32, "DIM": 128, "BM": 64, "BN": 128},
    ),
    "indexer paged": (
        paged_logits_kernel,
        {"q": "*fp8e4nv", "cache": "*u8", "weights": "*fp32", "lengths": "*i32", "block_table": "*i32"}
        | {
            "logits": "*fp32",
            "table_row": "i32",
            "table_width": "i32",
            "block_bytes": "i32",
            "logits_row": "i32",
        },
        {"HEADS": 32, "DIM": 128, "ROWS": 4, "PAGE": 64},
    ),
}


@dataclass(frozen=True)
class Variant:
    """One compilation of the attention kernel; where `slots` is 0, of the kernel that `kv` names."""

    capability: int
    kv: str
    activation: str
    from_positions: bool
    splits: int
    slots: int
    stages: int
    warps: int
    heads: int


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a variant."""

    variant: Variant
    registers: int
    stack_bytes: int
    shared_bytes: int
    resident_programs: int

    @property
    def problem(self) -> str | None:
        limit = LIMITS[self.variant.capability][0]
        if self.stack_bytes:
            return f"{self.stack_bytes} bytes of registers spilled"
        if self.shared_bytes > limit:
            return f"{self.shared_bytes} bytes of shared memory; expected at most {limit}"
        return None


def shipped_configurations(capability: int, kv_format: KVFormat) -> set[LaunchConfig]:
    """What `choose` returns for any number of rows and heads."""
    key = divmod(capability, 10)
    multiprocessors = LIMITS[capability][3]
    rows = [*range(1, 2 * multiprocessors), 4096]
    chosen = {
        choose(r, h, 2048, kv_format, key, multiprocessors, invariant)
        for r, h, invariant in itertools.product(rows, (8, 16, 64, 128), (False, True))
    }
    # beside "not split", the number of splits is a constant in an address and nothing else: one stands for all
    shown: dict[tuple[Tile, bool], LaunchConfig] = {}
    for config in sorted(chosen, key=lambda c: (c.splits == BATCH_INVARIANT_SPLITS, c.splits)):
        shown[config.tile, config.splits > 1] = config
    return set(shown.values())


def variants() -> list[Variant]:
    found = []
    for capability in LIMITS:
        for kv_format in ARCHITECTURES[f"sm{capability}"]:
            for config in shipped_configurations(capability, kv_format):
                tile = config.tile
                for activation, positions in itertools.product(("bf16", "fp16"), (False, True)):
                    found.append(
                        Variant(
                            capability,
                            kv_format.value,
                            activation,
                            positions,
                            config.splits,
                            tile.slots,
                            tile.stages,
                            tile.warps,
                            tile.heads,
                        )
                    )
        found.append(Variant(capability, "merge", "bf16", False, MAX_SPLITS, 0, 0, 2, 0))
        if capability >= 89:
            found += [Variant(capability, name, "bf16", False, 1, 0, 0, 4, 32) for name in INDEXER]
    return sorted(found, key=str)


def source_of(v: Variant) -> ASTSource:
    pointer = f"*{v.activation}"
    overlap = v.capability >= 90
    if v.kv in INDEXER:
        kernel, arguments, constants = INDEXER[v.kv]
        signature = dict(arguments)
    elif v.slots == 0:
        signature = {"part_out": "*fp32", "part_lse": "*fp32", "out": pointer, "lse": "*fp32", "heads": "i32"}
        constants = {"SPLITS": v.splits, "BD": 128, "PDL": overlap}
        kernel = merge_kernel
    else:
        kv = pointer if v.kv == KVFormat.WIDE.value else "*i32"
        signature = {"q_latent": pointer, "q_rope": pointer, "kv": kv, **POINTERS, "out": pointer, **PARTS}
        signature |= {"score_scale": "fp32", "value_scale": "fp32", **dict.fromkeys(INTEGERS, "i32")}
        constants = {
            "BLOCK_SIZE": 64 if v.from_positions else 0,
            "SPLITS": v.splits,
            "BH": v.heads,
            "BN": v.slots,
            "BC": min(1024, 2048 // v.splits),
            "STAGES": v.stages,
            "PDL": overlap,
        }
        kernel = attend_kernel
        if v.kv != KVFormat.WIDE.value:
            kernel = attend_fp8_kernel
            constants = {"GROUPED": v.kv == KVFormat.FP8_GROUPED.value, "INTERPRETED": False} | constants
    signature |= dict.fromkeys(constants, "constexpr")
    divisible = {
        (i,): [["tt.divisibility", 16]]
        for i, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name in DIVISIBLE
    }
    return ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=divisible)


def compile_variant(v: Variant) -> Compiled:
    kernel = triton.compile(
        source_of(v), target=GPUTarget("cuda", v.capability, 32), options={"num_warps": v.warps}
    )
    tools = Path(triton.__path__[0]) / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(kernel.asm["cubin"])
        cubin.flush()
        usage = subprocess.run(
            [tools / "cuobjdump", "-res-usage", cubin.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if found is None:
        raise SystemExit(f"cuobjdump reports no registers for {v}: {usage}")
    registers, stack = int(found.group(1)), int(found.group(2))
    _, shared_total, registers_total, _ = LIMITS[v.capability]
    shared = kernel.metadata.shared
    # registers are given out to a warp in units of 8 a thread
    by_registers = registers_total // (-(-registers // 8) * 8 * 32 * v.warps)
    return Compiled(
        v, registers, stack, shared, min(by_registers, shared_total // (shared + RESERVED_SHARED))
    )


def main(out: Path | None) -> int:
    with ProcessPoolExecutor(2) as pool:
        compiled = list(pool.map(compile_variant, variants(), chunksize=4))
    problems = [f"{c.variant}: {c.problem}" for c in compiled if c.problem]
    if out is not None:
        result = {
            "triton": triton.__version__,
            "command": "python tests/bench/offline_compile.py OUT.json",
            "shared_limit_bytes": {str(capability): limits[0] for capability, limits in LIMITS.items()},
            "compiled": [asdict(c) for c in compiled],
        }
        out.write_text(json.dumps(result, indent=1))
    print(f"{len(compiled)} variants compiled with Triton {triton.__version__}, {len(problems)} do not fit")
    print(*problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
