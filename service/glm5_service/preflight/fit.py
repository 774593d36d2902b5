"""How much memory a model takes and how long a context fits: arithmetic on what the plugin says of the file. Pure.

Latent attention replicates its KV cache on every GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from glm5_service.engine.command import Profile
from glm5_service.engine.inspect import GgufFacts
from glm5_service.errors import FitError

FLOAT_BYTES = 2  # float16 and bfloat16
# fp8_ds_mla: 512 fp8 values, 4 float32 scales, 64 bf16 rope values; the indexer: 128 fp8 values and a float32 scale
FP8_ROW_BYTES = 656
FP8_INDEX_ROW_BYTES = 132
# CUDA context, NCCL buffers and activations of one GPU, and the graphs of all batch sizes; to be measured on SM120
CONTEXT_BYTES = 2 * 1024**3
GRAPH_BYTES = 2 * 1024**3


@dataclass(frozen=True)
class Demand:
    """Memory of one GPU (of the host on the cpu profile), in bytes."""

    weights: int
    kv_per_token: int
    graphs: int
    context: int


@dataclass(frozen=True)
class Fit:
    """Whether the demand fits into `available` bytes, and how many tokens of KV cache remain."""

    demand: Demand
    available: int
    kv_tokens: int

    @property
    def longest_context(self) -> int:
        """The longest single context, in tokens."""
        return self.kv_tokens


def demand(
    gguf: GgufFacts,
    profile: Profile,
    ranks: int,
    dtype_bytes: int,
    kv_dtype: str,
    *,
    eager: bool,
    with_draft: bool = False,
) -> Demand:
    """What each of `ranks` GPUs must hold; `with_draft` counts the block that predicts several tokens."""
    weights = gguf.weights.rank_bytes(ranks, dtype_bytes)
    if with_draft:
        weights += gguf.draft_weights.rank_bytes(ranks, dtype_bytes)
    return Demand(
        weights=weights,
        kv_per_token=kv_bytes_per_token(gguf, profile, dtype_bytes, kv_dtype),
        graphs=0 if eager else GRAPH_BYTES,
        context=CONTEXT_BYTES if profile == "cuda" else 0,
    )


def kv_bytes_per_token(gguf: GgufFacts, profile: Profile, dtype_bytes: int, kv_dtype: str) -> int:
    """KV cache of one token: the latent and rope row of every layer, the key row of every layer with an indexer."""
    h = gguf.hyperparameters
    is_fp8 = kv_dtype.startswith("fp8")
    row = FP8_ROW_BYTES if is_fp8 else (h.kv_lora + h.rope_dim) * dtype_bytes
    # the cpu profile keeps the indexer's keys in the activation type
    index_row = h.indexer_dim * dtype_bytes if profile == "cpu" else FP8_INDEX_ROW_BYTES
    return h.layers * row + gguf.indexer_layers * index_row


def fit_gpu(need: Demand, total: int, utilization: float) -> Fit:
    """The fit on one GPU of `total` bytes of which the engine may use `utilization`; raises FitError if weights don't."""
    available = int(total * utilization)
    left = available - need.weights - need.graphs - need.context
    if left <= need.kv_per_token:
        wanted = need.weights + need.graphs + need.context
        raise FitError(
            "the model does not fit on a GPU",
            f"{gib(wanted)} of weights, graphs and context",
            expected=f"less than {gib(available)} ({utilization:.0%} of {gib(total)})",
            remedy="Spread it over more GPUs (engine.tensor_parallel_size) or take a smaller quantisation.",
        )
    return Fit(need, available, left // need.kv_per_token)


def fit_cpu(need: Demand, available: int, kv_cache_bytes: int) -> Fit:
    """The fit on a host with `available` bytes free, of which the KV cache takes `kv_cache_bytes`."""
    wanted = need.weights + kv_cache_bytes
    if wanted > available:
        raise FitError(
            "the model does not fit into memory",
            f"{gib(wanted)} of weights and KV cache",
            expected=f"less than {gib(available)}",
            remedy="Lower engine.cpu_kv_cache_gib or take a smaller model.",
        )
    return Fit(need, available, kv_cache_bytes // need.kv_per_token)


def gib(count: int) -> str:
    """Bytes for people, in the units that memory is sold in."""
    return f"{count / 1024**3:.1f} GiB" if count >= 1024**3 // 10 else f"{count / 1024**2:.1f} MiB"
