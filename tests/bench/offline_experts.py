"""Compiles the expert kernels' configurations for cards that are not here: offline_experts.py [OUT.json]

Needs Triton alone, as offline_compile.py does. Exits with 1 if a kernel spills or does not fit.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from glm5_vllm.experts.kernels.configs import ARCHITECTURES, LaunchConfig, Tile, fitted
from glm5_vllm.experts.kernels.products import (
    activate_kernel,
    down_kernel,
    gate_up_kernel,
    prepare_kernel,
    sum_kernel,
)
from glm5_vllm.experts.kernels.routing import count_kernel, place_kernel
from glm5_vllm.experts.kernels.weights import constants
from glm5_vllm.experts.layouts import LAYOUTS
from glm5_vllm.gguf.file.quant_types import BY_NAME

# capability: shared memory a program may have
LIMITS = {80: 166_912, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
HIDDEN, TOPK = 6144, 8
INTEGERS = dict.fromkeys(("ids", "order", "blocks", "block_count", "counts", "packed"), "*i32")
POINTERS = {
    **INTEGERS,
    **dict.fromkeys(("halves", "sums", "activations", "hidden", "out_sums"), "*fp16"),
    **dict.fromkeys(("x", "of_pairs"), "*bf16"),
    **dict.fromkeys(("parts", "weights"), "*fp32"),
    "pairs": "i32",
    "experts": "i32",
}


@dataclass(frozen=True)
class Variant:
    """One compilation. `tile` is of the product the kernel is of; intermediate 512 stands for all beyond 256."""

    capability: int
    kernel: str
    quant: str
    intermediate: int
    is_sorted: bool
    block: int
    tiles: int
    warps: int
    stages: int
    splits: int
    steps: int


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a variant."""

    variant: Variant
    registers: int
    stack_bytes: int
    shared_bytes: int

    @property
    def problem(self) -> str | None:
        limit = LIMITS[self.variant.capability]
        if self.stack_bytes:
            return f"{self.stack_bytes} bytes of registers spilled"
        if self.shared_bytes > limit:
            return f"{self.shared_bytes} bytes of shared memory; expected at most {limit}"
        return None


def of_config(capability: int, quant: str, intermediate: int, config: LaunchConfig) -> list[Variant]:
    """Both products of one type as `config` runs them."""

    def variant(kernel: str, tile: Tile, steps: int) -> Variant:
        return Variant(
            capability, kernel, quant, intermediate, config.is_sorted, config.block,
            tile.tiles, tile.warps, tile.stages, config.splits, steps,
        )  # fmt: skip

    return [variant("gate_up", config.gate_up, 1), variant("down", config.down, config.steps)]


def variants() -> list[Variant]:
    """What the tables can choose; types whose assembly differs in constants alone stand for each other."""
    types = [quant for quant in LAYOUTS if quant.name not in ("IQ3_XXS", "IQ4_XS")]
    found = set()
    for capability in LIMITS:
        architecture = ARCHITECTURES[f"sm{capability}"]
        for quant in types:
            layout = LAYOUTS[quant]
            for _, config in architecture.wide if layout.high_bits >= 2 else architecture.table:
                gate_up, down = of_config(capability, quant.name, 256, fitted(config, HIDDEN, 256))
                # beside 1, the number of steps and of splits is a constant in an address and nothing else
                found |= {gate_up, replace(down, steps=min(down.steps, 2), splits=1)}
                if quant.name == "Q6_K":
                    # down loops over the columns of wider experts; its loop holds the same as above for any type
                    down = of_config(capability, quant.name, 512, fitted(config, HIDDEN, 512))[1]
                    found.add(replace(down, steps=min(down.steps, 2), splits=1))
        for name in OTHERS:
            warps = 8 if name.startswith("place") else 4
            found.add(Variant(capability, name, "", 256, True, 16, 0, warps, 0, 1, 1))
    return sorted(found, key=str)


OTHERS = {
    "prepare": (prepare_kernel, {"COLUMNS": HIDDEN, "BLOCK": 2048}),
    "sum": (sum_kernel, {"COLUMNS": HIDDEN, "TOPK": TOPK, "BLOCK": 1024}),
    "activate": (activate_kernel, {"INTERMEDIATE": 256, "SPLITS": 4}),
    "count": (count_kernel, {"BINS": 256, "CHUNK": 512}),
    "place": (
        place_kernel,
        {"BINS": 256, "BM": 16, "CHUNK": 512, "STEP": 32, "COUNTED": True},
    ),
    "place alone": (
        place_kernel,
        {"BINS": 256, "BM": 16, "CHUNK": 32, "STEP": 32, "COUNTED": False},
    ),
}


def source_of(v: Variant) -> ASTSource:
    pointers = dict(POINTERS)
    if v.kernel in OTHERS:
        kernel, constant = OTHERS[v.kernel]
        pointers["out"] = "*fp16" if v.kernel == "activate" else "*bf16"
    else:
        kernel = gate_up_kernel if v.kernel == "gate_up" else down_kernel
        pointers["out"] = "*fp16" if v.kernel == "gate_up" else "*bf16"
        constant = {
            "COLUMNS": HIDDEN, "INTERMEDIATE": v.intermediate, "TOPK": TOPK,
            "LAYOUT": constants(LAYOUTS[BY_NAME[v.quant]]), "BM": v.block, "TILES": v.tiles, "WARPS": v.warps,
            "STAGES": v.stages, "STEPS": v.steps, "SPLITS": v.splits, "SORTED": v.is_sorted,
        }  # fmt: skip
    signature = {name: pointers.get(name, "constexpr") for name in kernel.arg_names}
    constants_of = {(kernel.arg_names.index(k),): c for k, c in constant.items() if k in signature}
    divisible = {
        (i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.startswith("*")
    }
    return ASTSource(fn=kernel, signature=signature, constexprs=constants_of, attrs=divisible)


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
    return Compiled(v, int(found.group(1)), int(found.group(2)), kernel.metadata.shared)


def main(out: Path | None) -> int:
    with ProcessPoolExecutor(2) as pool:
        compiled = list(pool.map(compile_variant, variants(), chunksize=4))
    problems = [f"{c.variant}: {c.problem}" for c in compiled if c.problem]
    if out is not None:
        result = {
            "triton": triton.__version__,
            "command": "python tests/bench/offline_experts.py OUT.json",
            "shared_limit_bytes": {str(capability): limit for capability, limit in LIMITS.items()},
            "compiled": [asdict(c) for c in compiled],
        }
        out.write_text(json.dumps(result, indent=1))
    print(f"{len(compiled)} variants compiled with Triton {triton.__version__}, {len(problems)} do not fit")
    print(*problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
