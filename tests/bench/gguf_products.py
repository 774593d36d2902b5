"""Times the products of GGUF weights on one card: gguf_products.py OUT.json [SECONDS]

Needs vLLM's CUDA build and vllm-gguf-plugin. Shapes are those of a TP=8 rank of GLM-5, routing is uniform. Each call is
timed inside a CUDA graph over rotating inputs. The peer is vllm-gguf-plugin's own choice of kernel, in the same run. An
answer further from float32 than the peer's by the factor `WORST` ends the run.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import gguf
import torch
import vllm
import vllm._custom_ops  # registers vLLM's operations
from vllm.config import VllmConfig, set_current_vllm_config
from vllm_gguf_plugin import ops
from vllm_gguf_plugin.quantization import fused_moe as peer
from vllm_gguf_plugin.quantization import fused_mul_mat_gguf

from glm5_vllm.gguf.file.quant_types import BY_NAME, QuantType
from glm5_vllm.gguf.plan.held import HELD_AS_FLOAT
from glm5_vllm.gguf.values.dequant import dequantize
from glm5_vllm.patches.gguf_expert_grid import GRID_Z
from glm5_vllm.products import experts, policy
from glm5_vllm.products.policy import Kernel
from tests.support.cuda_time import copy_rate, graph_us
from tests.support.random_blocks import SCALE_FIELDS

DEVICE = torch.device("cuda")
EXPERTS, HIDDEN, INTERMEDIATE, TOP_K = 256, 6144, 256, 8
ROWS = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192)
# gate and up, down: what the published mixes hold
PAIRS = (
    ("Q4_K", "Q6_K"), ("IQ3_XXS", "IQ4_XS"), ("Q4_K", "Q5_K"), ("Q8_0", "Q8_0"), ("IQ3_S", "IQ4_XS"), ("Q5_K", "Q6_K"),
    ("Q3_K", "Q4_K"), ("Q6_K", "Q8_0"), ("IQ4_XS", "Q5_K"),
)  # fmt: skip
LINEARS = {"qkv_a": (2624, 6144), "q_b": (2048, 2048), "o_proj": (6144, 2048), "lm_head": (19360, 6144)}
WORST = 1.5


@dataclass
class Layer:
    """Microseconds of a layer's routed experts for a number of rows."""

    gate_up: str
    down: str
    rows: int
    us: dict[str, float] = field(default_factory=dict)
    relative_error: dict[str, float] = field(default_factory=dict)


def random_rows(count: int, columns: int, quant: QuantType, deviation: float) -> torch.Tensor:
    """Random blocks [count, bytes of a row] whose values have about this standard deviation."""
    name = gguf.GGMLQuantizationType[quant.name]
    fields = SCALE_FIELDS[name]
    blocks = torch.randint(
        0, 256, (count * columns // quant.block_elements, quant.block_bytes), dtype=torch.uint8, device=DEVICE
    )
    unit = _with_scale(blocks[:4096].clone(), fields, torch.ones(min(4096, len(blocks)), device=DEVICE))
    spread = float(gguf.quants.dequantize(unit.cpu().numpy(), name).std())
    steps = (torch.rand(len(blocks), device=DEVICE) + 0.5) * (deviation / spread)
    return _with_scale(blocks, fields, steps).view(count, -1)


def _with_scale(blocks: torch.Tensor, fields: Any, steps: torch.Tensor) -> torch.Tensor:
    blocks[:, fields.scale : fields.scale + 2] = steps.half().view(torch.uint8).view(-1, 2)
    if fields.minimum is not None:
        low = (steps * fields.ratio).half().view(torch.uint8).view(-1, 2)
        blocks[:, fields.minimum : fields.minimum + 2] = low
    return blocks


class Case:
    """Experts of one pair of types, and calls over rotating inputs."""

    def __init__(self, gate_up: str, down: str) -> None:
        self.types = BY_NAME[gate_up], BY_NAME[down]
        w13 = random_rows(EXPERTS * 2 * INTERMEDIATE, HIDDEN, self.types[0], HIDDEN**-0.5)
        w2 = random_rows(EXPERTS * HIDDEN, INTERMEDIATE, self.types[1], INTERMEDIATE**-0.5)
        self.w13, self.w2 = w13.view(EXPERTS, 2 * INTERMEDIATE, -1), w2.view(EXPERTS, HIDDEN, -1)

    def inputs(self, rows: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        return [
            (
                torch.randn(rows, HIDDEN, device=DEVICE).bfloat16(),
                torch.rand(rows, TOP_K, device=DEVICE),
                torch.rand(rows, EXPERTS, device=DEVICE).topk(TOP_K, 1).indices.int(),
            )
            for _ in range(8 if rows <= 64 else 2)
        ]

    def ours(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        ids_of = (quant.type_id for quant in self.types)
        return experts.routed_experts(x, self.w13, self.w2, weights, ids, *ids_of, "silu")

    def plugin(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        ids_of = (quant.type_id for quant in self.types)
        return peer._fused_moe_gguf(x, self.w13, self.w2, weights, ids, *ids_of, "silu")

    def forced(self, gate_up: Kernel, down: Kernel) -> Callable[..., torch.Tensor]:
        """Each product by one kernel, whatever the policy says."""

        def call(x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return experts.packed_experts(
                x,
                (self.w13, self.w2),
                weights,
                ids,
                self.types,
                ((policy.Step(1, gate_up),), (policy.Step(1, down),)),
            )

        return call

    def dequantised(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return experts.dequantised_experts(x, (self.w13, self.w2), weights, ids, self.types)

    def reference(
        self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        """Float32 sums; weights and what is between the products rounded to `dtype`."""
        out = torch.zeros(x.shape, device=DEVICE)
        for expert in ids.unique().tolist():
            token, choice = (ids == expert).nonzero(as_tuple=True)
            gate_up, down = (
                _reference_floats(packed[expert], quant).to(dtype).float()
                for packed, quant in zip((self.w13, self.w2), self.types, strict=True)
            )
            gate, up = (x[token].float() @ gate_up.T).to(dtype).float().chunk(2, 1)
            hidden = (torch.nn.functional.silu(gate) * up).to(dtype).float()
            out.index_add_(0, token, (hidden @ down.T).to(dtype).float() * weights[token, choice, None])
        return out.to(dtype).float()


def _reference_floats(rows: torch.Tensor, quant: QuantType) -> torch.Tensor:
    columns = rows.shape[1] // quant.block_bytes * quant.block_elements
    return dequantize(rows, quant, (rows.shape[0], columns))


def error(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result.double() - exact.double()).norm() / exact.double().norm())


def time_layer(case: Case, rows: int, names: tuple[str, str]) -> Layer:
    layer = Layer(*names, rows)
    inputs = case.inputs(rows)
    tiled = [quant in policy.TILED_TYPES for quant in case.types]
    calls: dict[str, Callable[..., torch.Tensor]] = {"ours": case.ours}
    # the plugin alone does not cut a launch of the vector kernel that exceeds CUDA's grid
    if all(tiled) or rows * TOP_K <= GRID_Z:
        calls["plugin"] = case.plugin
    if rows <= 1024:
        calls["vector_vector"] = case.forced(Kernel.VECTOR, Kernel.VECTOR)
        if tiled[1]:
            calls["vector_tiled"] = case.forced(Kernel.VECTOR, Kernel.TILED)
        if all(tiled):
            calls["tiled_tiled"] = case.forced(Kernel.TILED, Kernel.TILED)
    if rows >= 64:
        calls["dequantised"] = case.dequantised
    if rows in (1, 8, 64, 1024):
        exact = case.reference(*inputs[0], torch.float32)
        layer.relative_error["bfloat16_weights"] = error(case.reference(*inputs[0], torch.bfloat16), exact)
        for name, call in calls.items():
            layer.relative_error[name] = error(call(*inputs[0]), exact)
        if layer.relative_error["ours"] > WORST * layer.relative_error["plugin"]:
            raise SystemExit(f"wrong: {layer}")
    for name, call in calls.items():
        layer.us[name] = round(graph_us(lambda chosen, call=call: call(*chosen), inputs), 1)
    return layer


def time_linear(packed: torch.Tensor, quant: QuantType, columns: int, tokens: int) -> dict[str, float]:
    """Microseconds of the packed product and of the float product of the same weights."""
    floats = ops.ggml_dequantize(packed, quant.type_id, packed.shape[0], columns, torch.bfloat16)
    xs = [torch.randn(tokens, columns, device=DEVICE).bfloat16() for _ in range(4)]
    return {
        "packed": round(graph_us(lambda x: fused_mul_mat_gguf(x, packed, quant.type_id), xs), 1),
        "float": round(graph_us(lambda x: torch.nn.functional.linear(x, floats), xs), 1),
    }


def time_linears() -> list[dict[str, Any]]:
    """The dense layers of a rank, in the types that are held as float."""
    timed = []
    for name, (rows, columns) in LINEARS.items():
        for quant in sorted(HELD_AS_FLOAT, key=lambda quant: quant.name):
            packed = random_rows(rows, columns, quant, columns**-0.5)
            for tokens in (1, 8, 64, 8192):
                entry = {"layer": name, "type": quant.name, "tokens": tokens}
                timed.append(entry | {"us": time_linear(packed, quant, columns, tokens)})
                print(timed[-1], flush=True)
    return timed


def main() -> None:
    out, limit = Path(sys.argv[1]), float(sys.argv[2] if len(sys.argv) > 2 else 900)
    started = time.monotonic()
    torch.manual_seed(0)
    result: dict[str, Any] = {
        "hardware": torch.cuda.get_device_name(),
        "compute_capability": list(torch.cuda.get_device_capability()),
        "versions": {"torch": torch.__version__, "vllm": vllm.__version__, "vllm_gguf_plugin": "0.0.5"},
        "command": "python tests/bench/gguf_products.py OUT.json",
        "copy_rate_bytes_per_second": copy_rate(),
        "shape": {"experts": EXPERTS, "hidden": HIDDEN, "intermediate": INTERMEDIATE, "top_k": TOP_K},
        "linears": time_linears(),
        "experts": [],
    }
    for names in PAIRS:
        case = Case(*names)
        for rows in ROWS:
            if time.monotonic() - started > limit:
                break
            layer = time_layer(case, rows, names)
            result["experts"].append(asdict(layer))
            print(layer, flush=True)
            out.write_text(json.dumps(result) + "\n")
        del case
        torch.cuda.empty_cache()


if __name__ == "__main__":
    with set_current_vllm_config(VllmConfig()):
        main()
