"""Times the attention kernels against those they replace, on one card: attention_kernels.py OUT.json

Needs vLLM's CUDA build. Each call is timed inside a CUDA graph over rotating index sets, and compared with the float32
reference first: a wrong answer ends the run without a number. FlashMLA gets its queries padded to 64 heads, as vLLM
pads them; its time with 8 heads stands beside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
import vllm
from vllm.third_party.flashmla.flash_mla_interface import (
    FlashMLASchedMeta,
    flash_mla_sparse_fwd,
    flash_mla_with_kvcache,
)
from vllm.v1.attention.backends.mla.sparse_utils import triton_convert_req_index_to_global_index
from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

from glm5_vllm.attention import reference
from glm5_vllm.attention.kernels.configs import KVFormat
from glm5_vllm.attention.kernels.inputs import KVRows, Positions, Query, Slots
from glm5_vllm.attention.kernels.launch import Workspace, attend, configuration
from tests.support.cuda_time import copy_rate, graph_us
from tests.support.sparse_case import SCALE, TOLERANCE, grouped_float, grouped_rows, relative_error

TOPK, NUM_SLOTS, BLOCK, CONTEXT = 2048, 1_000_000, 64, 32_768
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048)
BF16 = torch.bfloat16
DEVICE = torch.device("cuda")
PADDED_HEADS = 64
ROW_BYTES = {KVFormat.WIDE: 1152, KVFormat.FP8: 576, KVFormat.FP8_GROUPED: 656}


@dataclass(frozen=True)
class Timed:
    """Microseconds of one call by kernel, for one shape."""

    kv: str
    heads: int
    rows: int
    bytes_at_copy_rate_us: float
    us: dict[str, float]
    relative_error: float
    config: str


def index_sets_of(rows: int) -> list[torch.Tensor]:
    """Up to 16 sets of slots: each decode row 2048 of a context of its own, prefill rows of one context."""
    sets = []
    for _ in range(max(2, min(16, 256 // rows))):
        start = torch.randint(0, NUM_SLOTS - CONTEXT - BLOCK, (rows if rows <= 512 else 1, 1), device=DEVICE)
        chosen = [torch.rand(1, CONTEXT, device=DEVICE).topk(TOPK, dim=1).indices for _ in range(rows)]
        sets.append((start + torch.cat(chosen)).int())
    return sets


def kv_rows(kv_format: KVFormat) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """Cache rows and what turns some of them into float32."""
    values = torch.randn(NUM_SLOTS, 576, device=DEVICE)
    if kv_format is KVFormat.FP8_GROUPED:
        packed = grouped_rows(values[:, :512], values[:, 512:].to(BF16))
        return packed, partial(grouped_float, dtype=BF16)
    kv = values.to(BF16 if kv_format is KVFormat.WIDE else torch.float8_e4m3fn)
    return kv, torch.Tensor.float


def others(
    kv_format: KVFormat, q: torch.Tensor, kv: torch.Tensor, counts: torch.Tensor
) -> dict[str, Callable[[torch.Tensor], Any]]:
    """The kernels this one replaces, as vLLM calls them."""
    rows, heads, _ = q.shape
    padded = torch.zeros(rows, max(heads, PADDED_HEADS), 576, dtype=BF16, device=DEVICE)
    padded[:, :heads] = q
    if kv_format is KVFormat.FP8_GROUPED:
        cache, plan = kv[: NUM_SLOTS // BLOCK * BLOCK].view(-1, BLOCK, 1, 656), FlashMLASchedMeta()
        return {
            "flashmla": lambda index: flash_mla_with_kvcache(
                padded[:, None],
                cache,
                None,
                None,
                512,
                plan,
                softmax_scale=SCALE,
                is_fp8_kvcache=True,
                indices=index.view(rows, 1, TOPK),
            )
        }
    if kv_format is KVFormat.FP8:
        return {}
    keys, one = kv.view(-1, 1, 1, 576), torch.ones((), device=DEVICE)
    out, lse = (
        torch.zeros(rows, heads, 512, dtype=BF16, device=DEVICE),
        torch.zeros(rows, heads, device=DEVICE),
    )
    parts = torch.empty(rows, heads, 4, 513, device=DEVICE)

    def flash(query: torch.Tensor, index: torch.Tensor) -> Any:
        return flash_mla_sparse_fwd(query, kv[:, None], index.view(rows, 1, TOPK), SCALE, topk_length=counts)

    return {
        "flashmla": partial(flash, padded),
        **({"flashmla_unpadded": partial(flash, q)} if heads < PADDED_HEADS else {}),
        "stock_triton_decode": lambda index: decode_attention_fwd(
            q,
            keys,
            keys[..., :512],
            out,
            lse,
            index,
            counts,
            parts,
            4,
            SCALE,
            1,
            k_scale=one,
            v_scale=one,
            is_mla=True,
        ),
    }


def time_shape(
    kv_format: KVFormat, heads: int, rows: int, kv: torch.Tensor, as_float: Any, rate: float
) -> Timed:
    index_sets = index_sets_of(rows)
    q = torch.randn(rows, heads, 576, device=DEVICE).to(BF16)
    counts = torch.full((rows,), TOPK, dtype=torch.int32, device=DEVICE)
    workspace = Workspace.create(heads, TOPK, rows, DEVICE)
    # a block table that maps every position to itself, so the same index sets serve as positions
    table = torch.arange(NUM_SLOTS // BLOCK, dtype=torch.int32, device=DEVICE)[None]
    request = torch.zeros(rows, dtype=torch.int32, device=DEVICE)

    def slots(index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return attend(Query.of(q, SCALE), KVRows(kv), Slots(index, counts), workspace)

    def positions(index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mapped = Positions(index, table, request, BLOCK, BLOCK)
        return attend(Query.of(q, SCALE), KVRows(kv), mapped, workspace)

    def converted(index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ready, valid = triton_convert_req_index_to_global_index(
            request, table, index, BLOCK_SIZE=BLOCK, NUM_TOPK_TOKENS=TOPK, return_valid_counts=True
        )
        return attend(Query.of(q, SCALE), KVRows(kv), Slots(ready, valid), workspace)

    checked = min(rows, 16)
    used, inverse = index_sets[0][:checked].unique(return_inverse=True)
    expected, _ = reference.sparse_mla(
        q[:checked], as_float(kv[used.long()]), inverse.int(), counts[:checked], SCALE
    )
    error = max(
        relative_error(call(index_sets[0])[0][:checked], expected) for call in (slots, positions, converted)
    )
    if not error < TOLERANCE[BF16]:
        raise SystemExit(
            f"{kv_format} rows={rows} heads={heads}: error {error}; no time is given for a wrong answer"
        )
    ours = {"slots": slots, "positions": positions, "converter_and_slots": converted}
    calls = {**ours, **others(kv_format, q, kv, counts)}
    config = configuration(rows, heads, TOPK, kv_format, DEVICE, False)
    return Timed(
        kv=kv_format.value,
        heads=heads,
        rows=rows,
        bytes_at_copy_rate_us=round(rows * TOPK * ROW_BYTES[kv_format] / rate * 1e6, 2),
        us={name: round(graph_us(call, index_sets), 2) for name, call in calls.items()},
        relative_error=error,
        config=f"{asdict(config.tile)} splits={config.splits}",
    )


def main(out: Path) -> None:
    torch.manual_seed(0)
    rate = copy_rate()
    timed = []
    for kv_format in KVFormat:
        kv, as_float = kv_rows(kv_format)
        for heads in (8, 64) if kv_format is KVFormat.WIDE else (8,):
            for rows in ROWS:
                timed.append(time_shape(kv_format, heads, rows, kv, as_float, rate))
                print(json.dumps(asdict(timed[-1])), flush=True)
    result = {
        "hardware": torch.cuda.get_device_name(),
        "compute_capability": list(torch.cuda.get_device_capability()),
        "versions": {"torch": torch.__version__, "triton": triton.__version__, "vllm": vllm.__version__},
        "command": "python tests/bench/attention_kernels.py OUT.json",
        "copy_rate_bytes_per_second": rate,
        "top_k": TOPK,
        "timed": [asdict(entry) for entry in timed],
    }
    out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
