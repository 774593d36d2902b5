"""What tiny model to write: sizes, quant mix, layout, splits. Data only; tiny_gguf.py writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tests.support.tiny_tokenizer import TinyTokenizer

# GLM-5's own head dimensions, which kernels are built for
KV_LORA, ROPE, NOPE, VALUE, INDEX_DIM = 512, 64, 192, 256, 128
EPSILON, THETA, EXPERT_SCALE = 1e-5, 1e6, 2.5


@dataclass(frozen=True)
class QuantMix:
    """Quant type of each group of tensors; rows of `k_b` are 192 long, so it takes blocks of 32 or floats."""

    embedding: str = "Q4_K"
    output: str = "Q6_K"
    q_a: str = "Q8_0"
    q_b: str = "Q8_0"
    kv_a: str = "Q8_0"
    k_b: str = "Q8_0"
    v_b: str = "Q4_K"
    attention_output: str = "Q5_K"
    indexer: str = "Q8_0"
    indexer_proj: str = "F32"
    dense_in: str = "Q4_K"
    dense_down: str = "Q6_K"
    gate: str = "Q4_K"
    up: str = "Q4_K"
    down: str = "Q6_K"
    shared: str = "Q8_0"
    router: str = "F32"


@dataclass(frozen=True)
class TinySpec:
    """What model to write. `shared_layers` run no indexer and carry none unless `repeat_indexer` says so."""

    layers: int = 3
    heads: int = 4
    experts: int = 8
    experts_used: int = 2
    hidden: int = 256
    q_lora: int = 256
    dense_layers: int = 1
    dense_intermediate: int = 512
    expert_intermediate: int = 256
    index_heads: int = 32
    index_topk: int = 64
    context: int = 4096
    vocab: int = 320
    seed: int = 0
    quants: QuantMix = field(default_factory=QuantMix)
    splits: int = 1
    metadata_only_first: bool = False
    layout: Literal["split3d", "split2d", "kv_b"] = "split3d"
    mtp: bool = False
    shared_layers: tuple[int, ...] = ()
    repeat_indexer: bool = False
    write_indexer_types: bool = False
    name: str = "tiny-glm-dsa"
    tokenizer: TinyTokenizer | None = None
    # without it: bytes alone, for a model whose floats would not fit into memory
    with_reference: bool = True


# the smallest model that has everything: for tests of the file, where attention's sizes do not matter
SMALL = TinySpec(layers=2, heads=2, experts=4, index_heads=4)
