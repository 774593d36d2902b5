"""Which engines run, in which group, on which model, and what each is compared with. Data only."""

from __future__ import annotations

from dataclasses import replace

from tests.gpu.engine_run import VOCAB, EngineRun
from tests.support.tiny_spec import QuantMix, TinySpec

OURS, STOCK = "TRITON_MLA_SPARSE", "FLASHMLA_SPARSE"

# both backends of a pair on the same card, one after the other
RATES = {
    heads: {
        f"stock-{heads}": EngineRun(STOCK, heads, measure_rate=True),
        f"ours-{heads}": EngineRun(OURS, heads, measure_rate=True),
    }
    for heads in (8, 64)
}
MODES = {
    "ours-64-eager": EngineRun(OURS, 64, eager=True),
    "ours-8-eager": EngineRun(OURS, 8, eager=True),
    "ours-64-whole-prefill": EngineRun(OURS, 64, batched_tokens=16384),
    "stock-64-mtp2": EngineRun(STOCK, 64, drafted=2),
    "ours-64-mtp2": EngineRun(OURS, 64, drafted=2),
    "ours-8-mtp3": EngineRun(OURS, 8, drafted=3),
    "ours-8-float16": EngineRun(OURS, 8, dtype="float16", kv_cache_dtype="float16"),
    "ours-8-triton-indexer": EngineRun(OURS, 8, triton_indexer=True),
    # other positions than the indexer's must show, or equal tokens prove nothing
    "control-8": EngineRun(OURS, 8, top_k=1024),
}
# stock has no fp8 cache with one scale: its packed one stands beside ours, with other roundings
FP8 = {
    "stock-8-fp8_ds_mla": EngineRun(STOCK, 8, kv_cache_dtype="fp8_ds_mla"),
    "ours-8-fp8_ds_mla": EngineRun(OURS, 8, kv_cache_dtype="fp8_ds_mla"),
    "ours-8-fp8": EngineRun(OURS, 8, kv_cache_dtype="fp8"),
}
PARALLEL = {
    "ours-64-tp2": EngineRun(OURS, 64, tensor_parallel=2),
    "ours-64-tp2-dcp2": EngineRun(OURS, 64, tensor_parallel=2, context_parallel=2),
}
GGUF = {
    "stock-gguf": EngineRun(STOCK, 8),
    "ours-gguf": EngineRun(OURS, 8),
    "ours-gguf-memory": EngineRun(OURS, 8, weights="memory"),
    "ours-gguf-mtp1": EngineRun(OURS, 8, drafted=1),
}
GGUF_PARALLEL = {
    "ours-gguf-wide": EngineRun(OURS, 8),
    "ours-gguf-tp2": EngineRun(OURS, 8, tensor_parallel=2),
    "ours-gguf-tp2-dcp2": EngineRun(OURS, 8, tensor_parallel=2, context_parallel=2),
}
# experts without a kernel for many rows; 8192 tokens with 8 experts each exceed CUDA's grid in one launch
GGUF_IQ = {"ours-gguf-iq": EngineRun(OURS, 8, batched_tokens=8192)}
GROUPS = {
    "rates-8": RATES[8],
    "rates-64": RATES[64],
    "modes": MODES,
    "fp8": FP8,
    "parallel": PARALLEL,
    "gguf": GGUF,
    "gguf-parallel": GGUF_PARALLEL,
    "gguf-iq": GGUF_IQ,
}

_K_QUANTS = TinySpec(heads=8, experts_used=8, index_topk=2048, context=16384, vocab=VOCAB, splits=3, mtp=True)
# the GGUF of a group; without one a group's models have float weights
MODELS = {
    "gguf": _K_QUANTS,
    # down_proj in whole blocks of 256 on each of two ranks
    "gguf-parallel": replace(_K_QUANTS, expert_intermediate=512),
    "gguf-iq": replace(_K_QUANTS, quants=QuantMix(gate="IQ4_XS", up="IQ4_XS", down="IQ4_XS")),
}
COMPARED = {
    "ours-64": "stock-64",
    "ours-8": "stock-8",
    "ours-64-eager": "stock-64",
    "ours-8-eager": "stock-8",
    "ours-64-whole-prefill": "stock-64",
    "stock-64-mtp2": "stock-64",
    "ours-64-mtp2": "stock-64",
    "ours-8-mtp3": "stock-8",
    "ours-8-fp8_ds_mla": "stock-8-fp8_ds_mla",
    "ours-8-fp8": "stock-8-fp8_ds_mla",
    "ours-8-float16": "stock-8",
    "ours-8-triton-indexer": "ours-8",
    "control-8": "stock-8",
    "ours-64-tp2": "ours-64",
    "ours-64-tp2-dcp2": "ours-64-tp2",
    "ours-gguf": "stock-gguf",
    "ours-gguf-memory": "ours-gguf",
    "ours-gguf-mtp1": "ours-gguf",
    "ours-gguf-tp2": "ours-gguf-wide",
    "ours-gguf-tp2-dcp2": "ours-gguf-wide",
}
