"""GLM-5 at its real size as sparse files: every tensor in the index, no data behind it, a vocabulary of its size."""

from __future__ import annotations

import os
from itertools import islice, product
from pathlib import Path

import gguf
from gguf import GGUFValueType as Type

from tests.support.raw_gguf import Array, RawGGUF, RawTensor
from tests.support.tiny_tokenizer import TEMPLATE, byte_alphabet

LAYERS, DENSE, MTP = 78, 3, 1
HIDDEN, HEADS, Q_LORA, EXPERTS, WIDE, VOCAB = 6144, 64, 2048, 256, 2048, 154_880
TOKENS, MERGES = 154_856, 313_042

# the public Q4_K_M mix of GLM-5.1: gate and up Q4_K, down Q5_K, all else Q8_0
SMALL, GATE, DOWN, FLOAT = "Q8_0", "Q4_K", "Q5_K", "F32"

BLOCK = {
    "attn_norm.weight": ((HIDDEN,), FLOAT),
    "ffn_norm.weight": ((HIDDEN,), FLOAT),
    "attn_q_a.weight": ((Q_LORA, HIDDEN), SMALL),
    "attn_q_a_norm.weight": ((Q_LORA,), FLOAT),
    "attn_q_b.weight": ((HEADS * 256, Q_LORA), SMALL),
    "attn_kv_a_mqa.weight": ((576, HIDDEN), SMALL),
    "attn_kv_a_norm.weight": ((512,), FLOAT),
    "attn_k_b.weight": ((HEADS, 512, 192), SMALL),
    "attn_v_b.weight": ((HEADS, 256, 512), SMALL),
    "attn_output.weight": ((HIDDEN, HEADS * 256), SMALL),
    "indexer.attn_q_b.weight": ((32 * 128, Q_LORA), SMALL),
    "indexer.attn_k.weight": ((128, HIDDEN), SMALL),
    "indexer.proj.weight": ((32, HIDDEN), FLOAT),
    "indexer.k_norm.weight": ((128,), FLOAT),
    "indexer.k_norm.bias": ((128,), FLOAT),
}
DENSE_BLOCK = {
    "ffn_gate.weight": ((12288, HIDDEN), SMALL),
    "ffn_up.weight": ((12288, HIDDEN), SMALL),
    "ffn_down.weight": ((HIDDEN, 12288), SMALL),
}
MOE_BLOCK = {
    "ffn_gate_inp.weight": ((EXPERTS, HIDDEN), FLOAT),
    "exp_probs_b.bias": ((EXPERTS,), FLOAT),
    "ffn_gate_exps.weight": ((EXPERTS, WIDE, HIDDEN), GATE),
    "ffn_up_exps.weight": ((EXPERTS, WIDE, HIDDEN), GATE),
    "ffn_down_exps.weight": ((EXPERTS, HIDDEN, WIDE), DOWN),
    "ffn_gate_shexp.weight": ((WIDE, HIDDEN), SMALL),
    "ffn_up_shexp.weight": ((WIDE, HIDDEN), SMALL),
    "ffn_down_shexp.weight": ((HIDDEN, WIDE), SMALL),
}
MTP_BLOCK = {
    "nextn.eh_proj.weight": ((HIDDEN, 2 * HIDDEN), SMALL),
    "nextn.enorm.weight": ((HIDDEN,), FLOAT),
    "nextn.hnorm.weight": ((HIDDEN,), FLOAT),
    "nextn.shared_head_norm.weight": ((HIDDEN,), FLOAT),
}
MODEL = {
    "token_embd.weight": ((VOCAB, HIDDEN), SMALL),
    "output_norm.weight": ((HIDDEN,), FLOAT),
    "output.weight": ((VOCAB, HIDDEN), SMALL),
}
INTEGERS = {
    "block_count": LAYERS + MTP, "nextn_predict_layers": MTP, "context_length": 202_752, "embedding_length": HIDDEN,
    "feed_forward_length": 12288, "expert_feed_forward_length": WIDE, "leading_dense_block_count": DENSE,
    "vocab_size": VOCAB, "attention.head_count": HEADS, "attention.head_count_kv": 1, "attention.key_length": 576,
    "attention.value_length": 512, "attention.key_length_mla": 256, "attention.value_length_mla": 256,
    "attention.q_lora_rank": Q_LORA, "attention.kv_lora_rank": 512, "rope.dimension_count": 64,
    "expert_count": EXPERTS, "expert_used_count": 8, "expert_shared_count": 1, "expert_group_count": 1,
    "expert_group_used_count": 1, "expert_gating_func": 2, "attention.indexer.head_count": 32,
    "attention.indexer.key_length": 128, "attention.indexer.top_k": 2048,
}  # fmt: skip
REALS = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e6, "expert_weights_scale": 2.5}


def write_glm5(folder: Path, splits: int = 10) -> list[Path]:
    """Write the splits; together they look hundreds of GB long and take some 15 MB of disk."""
    tensors = _tensors()
    share = -(-len(tensors) // splits)
    paths = []
    for number in range(splits):
        raw = RawGGUF(metadata=_metadata() if number == 0 else {})
        raw.metadata |= {
            "split.no": (Type.UINT16, number),
            "split.count": (Type.UINT16, splits),
            "split.tensors.count": (Type.INT32, len(tensors)),
        }
        end = 0
        for name, (shape, quant) in tensors[number * share : (number + 1) * share]:
            raw.tensors.append(RawTensor(name, shape, int(gguf.GGMLQuantizationType[quant]), b"", end))
            end += -(-_nbytes(shape, quant) // raw.alignment) * raw.alignment
        path = folder / f"GLM-5-Q4_K_M-{number + 1:05d}-of-{splits:05d}.gguf"
        raw.write(path)
        os.truncate(path, path.stat().st_size + end)
        paths.append(path)
    return paths


def _tensors() -> list[tuple[str, tuple[tuple[int, ...], str]]]:
    tensors = list(MODEL.items())
    for layer in range(LAYERS + MTP):
        block = BLOCK | (DENSE_BLOCK if layer < DENSE else MOE_BLOCK) | (MTP_BLOCK if layer >= LAYERS else {})
        tensors += [(f"blk.{layer}.{name}", tensor) for name, tensor in block.items()]
    return tensors


def _nbytes(shape: tuple[int, ...], quant: str) -> int:
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[quant]]
    elements = 1
    for each in shape:
        elements *= each
    return elements // int(block) * int(size)


def _metadata() -> dict[str, tuple[Type, object]]:
    tokens, merges = _vocabulary()
    metadata: dict[str, tuple[Type, object]] = {
        "general.architecture": (Type.STRING, "glm-dsa"),
        "general.name": (Type.STRING, "GLM-5"),
        "glm-dsa.expert_weights_norm": (Type.BOOL, True),
        "tokenizer.ggml.model": (Type.STRING, "gpt2"),
        "tokenizer.ggml.pre": (Type.STRING, "glm4"),
        "tokenizer.ggml.tokens": (Type.ARRAY, Array(Type.STRING, tokens)),
        "tokenizer.ggml.token_type": (Type.ARRAY, Array(Type.INT32, [*[1] * (TOKENS - 1), 3])),
        "tokenizer.ggml.merges": (Type.ARRAY, Array(Type.STRING, merges)),
        "tokenizer.ggml.eos_token_id": (Type.UINT32, TOKENS - 1),
        "tokenizer.chat_template": (Type.STRING, TEMPLATE),
    }
    metadata |= {f"glm-dsa.{key}": (Type.UINT32, value) for key, value in INTEGERS.items()}
    metadata |= {f"glm-dsa.{key}": (Type.FLOAT32, value) for key, value in REALS.items()}
    return metadata


def _vocabulary() -> tuple[list[str], list[str]]:
    """As many tokens as GLM-5 has, each but the bytes joined from others in every way, and nearly as many merges."""
    letters = byte_alphabet()
    pairs = [a + b for a in letters for b in letters]
    few = letters[33:60]
    triples = [a + b + c for a in few for b in few for c in few]
    room = TOKENS - 1 - len(letters) - len(pairs) - len(triples)
    fours = [a + b for a, b in islice(product(triples, few), room)]
    merges = [f"{pair[0]} {pair[1]}" for pair in pairs]
    merges += [f"{word[:i]} {word[i:]}" for word in [*triples, *fours] for i in range(1, len(word))]
    return [*letters, *pairs, *triples, *fours, "<|endoftext|>"], merges
