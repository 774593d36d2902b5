"""How much memory a model takes and how long a context fits: arithmetic on what the plugin says of the file. Pure.

Latent attention replicates its KV cache on every GPU, but for decode context parallelism, which shares it out.
"""

from __future__ import annotations

from dataclasses import dataclass

from glm5_service.contracts.environment import HeldWeights
from glm5_service.contracts.model_report import GgufFacts
from glm5_service.errors import FitError
from glm5_service.host.vllm_build import Profile

GIB = 1024**3
FLOAT_BYTES = 2  # float16 and bfloat16
# rows with scales beside them. fp8_ds_mla: 512 fp8 values, 4 float32 scales, 64 bf16 rope values; nvfp4_ds_mla: as vLLM's
# mla_attention.py says. A row of plain fp8 has no scales, one byte a value
PACKED_ROW_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
# the indexer's: 128 fp8 values and a float32 scale
FP8_INDEX_ROW_BYTES = 132
# what backends of vLLM's own keep packed although it is asked for by another name (its mla_attention.py)
PACKING = {
    "FLASHMLA_SPARSE": ("fp8", "fp8_e4m3"),
    "FLASHINFER_MLA_SPARSE_SM120": ("auto", "fp8", "fp8_e4m3"),
}

# guessed, to be measured on SM120: CUDA context, NCCL buffers and small activations of one GPU, and the graphs of all
# batch sizes
CONTEXT_BYTES = 2 * GIB
GRAPH_BYTES = 2 * GIB

# exact, from vLLM 0.33.0. The indexer gathers keys into 8 times `factor` rows for every token of the longest context
# (get_max_prefill_buffer_size in v1/attention/backends/mla/indexer.py); the factor is 5 up to 256 Ki tokens, else 2
# (config/vllm.py)
GATHER_ROWS = 8
SHORT_CONTEXT = 256 * 1024
SHORT_FACTOR, LONG_FACTOR = 5, 2
# the indexer's scores of one chunk (VLLM_SPARSE_INDEXER_MAX_LOGITS_MB)
LOGITS_BYTES = 512 * 1024**2
# what the experts of GLM-5 put out for a token before it is summed (fused_moe.py of vllm-gguf-plugin): 8 experts, hidden
# size 6144
EXPERT_VALUES = 8 * 6144
# tokens of one step by the memory of a card (get_batch_defaults in engine/arg_utils.py)
STEP_TOKENS = ((160 * GIB, 16384), (70 * GIB, 8192), (0, 2048))


@dataclass(frozen=True)
class Demand:
    """Memory of one GPU (of the host on the cpu profile), in bytes; `kv_ranks` GPUs share a request's KV cache."""

    weights: int
    kv_per_token: int
    graphs: int
    context: int
    gather: int = 0
    step: int = 0
    kv_ranks: int = 1

    @property
    def exact(self) -> int:
        """What arithmetic gives, without what is guessed."""
        return self.weights + self.gather + self.step

    @property
    def total(self) -> int:
        """All but the KV cache."""
        return self.exact + self.graphs + self.context

    def tokens(self, room: int) -> int:
        """Tokens of KV cache in `room` bytes of each GPU."""
        return max(room, 0) // self.kv_per_token * self.kv_ranks


@dataclass(frozen=True)
class Fit:
    """Whether the demand fits into `available` bytes, and how many tokens of KV cache remain.

    `most_tokens` would remain if all that is guessed took nothing; every context up to `longest_context` fits.
    """

    demand: Demand
    available: int
    kv_tokens: int
    most_tokens: int
    longest_context: int


@dataclass(frozen=True)
class Layout:
    """How a model is spread and served: what its memory depends on beside the file."""

    profile: Profile
    """cpu counts weights and KV cache only."""
    ranks: int
    """GPUs of one pipeline stage."""
    dtype_bytes: int
    """Size of an activation."""
    kv_dtype: str
    """Type of the KV cache as it is stored, see `stored_kv_dtype`."""
    eager: bool
    """Without CUDA graphs."""
    held: HeldWeights = "memory"
    """How the weights are held, see `engine.weights`."""
    with_draft: bool = False
    """The block that predicts several tokens is loaded too, with a KV cache of its own."""
    stages: int = 1
    """Pipeline stages that the layers are spread over."""
    kv_ranks: int = 1
    """GPUs that share the KV cache of a request (decode context parallelism)."""
    max_context: int = 0
    """Longest context that is served, in tokens."""
    step_tokens: int = 0
    """Most tokens of one step."""


def demand(gguf: GgufFacts, layout: Layout) -> Demand:
    """What each GPU of the heaviest pipeline stage must hold."""
    layers, ranks, on_gpu = gguf.hyperparameters.layers, layout.ranks, layout.profile == "cuda"
    # whole layers: the heaviest stage has those that do not divide evenly
    main, draft, experts = gguf.weights, gguf.draft_weights, 0
    if layout.held == "speed":
        # a long chunk has the routed experts of one layer as floats beside what they put out
        main, draft, experts = gguf.speed_weights, gguf.speed_draft_weights, _experts_of_a_layer(gguf)
    of_all = main.rank_bytes(ranks, layout.dtype_bytes, layout.kv_ranks)
    weights = _up(of_all * _up(layers, layout.stages), layers)
    if layout.with_draft:
        weights += draft.rank_bytes(ranks, layout.dtype_bytes, layout.kv_ranks)
    values = layout.step_tokens * EXPERT_VALUES + experts // ranks
    return Demand(
        weights=weights,
        kv_per_token=kv_bytes_per_token(gguf, layout),
        graphs=0 if layout.eager else GRAPH_BYTES,
        context=CONTEXT_BYTES if on_gpu else 0,
        gather=layout.max_context * _gather_bytes_per_token(layout.max_context) if on_gpu else 0,
        # one after the other in every layer, so the larger one counts
        step=max(LOGITS_BYTES, values * layout.dtype_bytes) if on_gpu else 0,
        kv_ranks=layout.kv_ranks,
    )


def _experts_of_a_layer(gguf: GgufFacts) -> int:
    """Values of the routed experts of one layer: gate, up and down of each."""
    h = gguf.hyperparameters
    return h.experts * 3 * h.expert_intermediate * h.hidden


def kv_bytes_per_token(gguf: GgufFacts, layout: Layout) -> int:
    """KV cache of one token: the latent and rope row of every layer, the key row of every layer with an indexer."""
    h, kv_dtype, dtype_bytes = gguf.hyperparameters, layout.kv_dtype, layout.dtype_bytes
    value_bytes = 1 if kv_dtype.startswith("fp8") else dtype_bytes
    row = PACKED_ROW_BYTES.get(kv_dtype, (h.kv_lora + h.rope_dim) * value_bytes)
    # the cpu profile keeps the indexer's keys in the activation type
    index_row = h.indexer_dim * dtype_bytes if layout.profile == "cpu" else FP8_INDEX_ROW_BYTES
    # the draft's block is a layer with an indexer
    layers = _up(h.layers, layout.stages) + layout.with_draft
    indexer_layers = _up(gguf.indexer_layers, layout.stages) + layout.with_draft
    return layers * row + indexer_layers * index_row


def stored_kv_dtype(asked: str, backend: str | None, capability: tuple[int, int]) -> str:
    """The type in which `backend` (None: the plugin's) keeps a KV cache of the type that is asked for."""
    if asked in PACKING.get(backend or "", ()):
        return "fp8_ds_mla"
    # vLLM's model_executor/models/config.py
    return "fp8_e4m3" if asked == "auto" and capability[0] == 10 else asked


def default_step_tokens(gpu_bytes: int) -> int:
    """Most tokens that vLLM's API server puts into one step on such a GPU, if nobody says."""
    return next(tokens for least, tokens in STEP_TOKENS if gpu_bytes >= least)


def fit_gpu(need: Demand, total: int, utilization: float) -> Fit:
    """The fit on one GPU of `total` bytes of which the engine may use `utilization`.

    Raises FitError if not a token fits beside weights and buffers, whatever little that is guessed may take.
    """
    available = int(total * utilization)
    room = available - need.total
    if available - need.exact <= need.kv_per_token:
        raise FitError(
            "the model does not fit on a GPU",
            f"{gib(need.exact)} of weights and buffers",
            expected=f"less than {gib(available)} ({utilization:.0%} of {gib(total)})",
            remedy="Spread it over more GPUs (engine.tensor_parallel_size), lower engine.max_model_len"
            " or take a smaller quantisation.",
        )
    return Fit(
        need,
        available,
        need.tokens(room),
        need.tokens(available - need.exact),
        _longest_context(need, room + need.gather),
    )


def _longest_context(need: Demand, room: int) -> int:
    """The longest context whose KV cache and gather buffer fit into `room` bytes, and with it every shorter one."""
    room = max(room, 0)
    short, long = (
        room * need.kv_ranks // (need.kv_per_token + _gather_bytes_per_token(tokens) * need.kv_ranks)
        for tokens in (SHORT_CONTEXT, SHORT_CONTEXT + 1)
    )
    return short if short < SHORT_CONTEXT else long


def _gather_bytes_per_token(max_context: int) -> int:
    factor = SHORT_FACTOR if max_context <= SHORT_CONTEXT else LONG_FACTOR
    return GATHER_ROWS * factor * FP8_INDEX_ROW_BYTES


def _up(count: int, parts: int) -> int:
    return -(-count // parts)


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
    tokens = need.tokens(kv_cache_bytes)
    return Fit(need, available, tokens, tokens, tokens)


def gib(count: int) -> str:
    """Bytes for people, in the units that memory is sold in."""
    return f"{count / GIB:.1f} GiB" if count >= GIB // 10 else f"{count / 1024**2:.1f} MiB"
