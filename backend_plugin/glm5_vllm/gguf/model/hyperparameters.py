"""The hyperparameters of a `glm-dsa` model, read from the metadata and checked."""

from __future__ import annotations

from dataclasses import dataclass

from glm5_vllm.gguf.errors import FETCH_OR_CONVERT, GGUFError
from glm5_vllm.gguf.file.header import Header, MetadataValue

ARCHITECTURE = "glm-dsa"
GATING_SIGMOID = 2
# models that are taken for GLM-5
OTHER_MODELS = {"glm5next": "This is GLM-5.3-Flash, another model. Only GLM-5, 5.1, 5.2 and 5.3 are served"}
# far above GLM-5's 79: a corrupt count must not cost time
MAX_BLOCKS = 1024
# keys that scale positions where no rope.scaling.type says otherwise, and the values that change nothing
UNSCALED = {"rope.scaling.factor": (0, 1), "rope.scale_linear": (0, 1), "rope.scaling.attn_factor": (1,)}


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Sizes and factors of one model; the `mtp_layers` blocks follow the `layers` of the main model."""

    layers: int
    mtp_layers: int
    dense_layers: int
    context_length: int
    hidden: int
    dense_intermediate: int
    expert_intermediate: int
    vocab: int
    heads: int
    q_lora: int
    kv_lora: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    experts: int
    experts_used: int
    shared_experts: int
    expert_groups: int
    expert_groups_used: int
    expert_scale: float
    normalize_experts: bool
    indexer_heads: int
    indexer_dim: int
    indexer_top_k: int
    rms_epsilon: float
    rope_theta: float

    @property
    def blocks(self) -> int:
        return self.layers + self.mtp_layers

    @property
    def head_dim(self) -> int:
        """Size of one query head before absorption."""
        return self.nope_dim + self.rope_dim


def read_hyperparameters(header: Header) -> Hyperparameters:
    """Read and check the hyperparameters in the header that carries the model's metadata.

    Raises:
        GGUFError: another architecture, a key that is missing or of the wrong type, contradicting values.
    """
    keys = _Keys(header)
    architecture = header.metadata.get("general.architecture", "missing")
    if architecture != ARCHITECTURE:
        raise GGUFError(
            f"{header.path.name}: architecture",
            architecture,
            expected=ARCHITECTURE,
            remedy=OTHER_MODELS.get(str(architecture), "Only GLM-5 is served"),
        )
    mtp_layers = keys.integer("nextn_predict_layers", minimum=0, default=0)
    blocks = keys.integer("block_count", minimum=mtp_layers + 1, maximum=MAX_BLOCKS)
    kv_lora, rope_dim = keys.integer("attention.kv_lora_rank"), keys.integer("rope.dimension_count")
    experts, groups = keys.integer("expert_count"), keys.integer("expert_group_count", default=1)
    head_dim = keys.integer("attention.key_length_mla", minimum=rope_dim + 1)
    # llama.cpp exports latent attention as one key-value head of the latent's size
    keys.equal("attention.head_count_kv", 1)
    keys.equal("attention.key_length", kv_lora + rope_dim)
    keys.equal("attention.value_length", kv_lora)
    keys.equal("expert_gating_func", GATING_SIGMOID, default=GATING_SIGMOID)
    _check_unscaled(keys)
    return Hyperparameters(
        layers=blocks - mtp_layers,
        mtp_layers=mtp_layers,
        dense_layers=keys.integer("leading_dense_block_count", minimum=0, maximum=blocks - mtp_layers),
        context_length=keys.integer("context_length"),
        hidden=keys.integer("embedding_length"),
        dense_intermediate=keys.integer("feed_forward_length"),
        expert_intermediate=keys.integer("expert_feed_forward_length"),
        vocab=keys.integer("vocab_size"),
        heads=keys.integer("attention.head_count"),
        q_lora=keys.integer("attention.q_lora_rank"),
        kv_lora=kv_lora,
        rope_dim=rope_dim,
        nope_dim=head_dim - rope_dim,
        value_dim=keys.integer("attention.value_length_mla"),
        experts=experts,
        experts_used=keys.integer("expert_used_count", maximum=experts),
        shared_experts=keys.integer("expert_shared_count"),
        expert_groups=groups,
        expert_groups_used=keys.integer("expert_group_used_count", maximum=groups, default=1),
        expert_scale=keys.real("expert_weights_scale"),
        normalize_experts=keys.boolean("expert_weights_norm"),
        indexer_heads=keys.integer("attention.indexer.head_count"),
        indexer_dim=keys.integer("attention.indexer.key_length", minimum=rope_dim),
        indexer_top_k=keys.integer("attention.indexer.top_k"),
        rms_epsilon=keys.real("attention.layer_norm_rms_epsilon"),
        rope_theta=keys.real("rope.freq_base"),
    )


def _check_unscaled(keys: _Keys) -> None:
    """GLM-5 scales no positions. llama.cpp takes a factor without a type as linear scaling."""
    scaling = keys.find("rope.scaling.type")
    if scaling not in (None, "none"):
        raise keys.wrong("rope.scaling.type", scaling, "none, for GLM-5 scales no positions")
    for name, neutral in UNSCALED.items():
        factor = keys.find(name)
        if scaling is None and factor is not None and factor not in neutral:
            expected = f"{neutral[-1]} or no such key, for GLM-5 scales no positions"
            raise keys.wrong(name, factor, expected)


class _Keys:
    """Typed reads of `glm-dsa.*` keys; each failure names its key."""

    def __init__(self, header: Header) -> None:
        self._header = header

    def integer(
        self, name: str, *, minimum: int = 1, maximum: int = 1 << 31, default: int | None = None
    ) -> int:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.wrong(name, value, f"an integer from {minimum} to {maximum}")
        return value

    def equal(self, name: str, expected: int, *, default: int | None = None) -> None:
        value = self._get(name, default)
        if value != expected:
            raise self.wrong(name, value, str(expected))

    def real(self, name: str) -> float:
        value = self._get(name, None)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.wrong(name, value, "a positive number")
        return float(value)

    def boolean(self, name: str) -> bool:
        value = self._get(name, None)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def find(self, name: str) -> MetadataValue | None:
        return self._header.metadata.get(f"{ARCHITECTURE}.{name}")

    def wrong(self, name: str, value: object, expected: str) -> GGUFError:
        key = f"{self._header.path.name}: metadata key {ARCHITECTURE}.{name}"
        return GGUFError(key, value, expected=expected, remedy=FETCH_OR_CONVERT)

    def _get(self, name: str, default: int | None) -> MetadataValue:
        value = self._header.metadata.get(f"{ARCHITECTURE}.{name}", default)
        if value is None:
            raise self.wrong(name, "missing", "it to be there")
        return value
