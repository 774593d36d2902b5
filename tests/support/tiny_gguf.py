"""Tiny but complete `glm-dsa` GGUF models with a float reference, written in well under a second.

Head dimensions are GLM-5's own (kv_lora 512, rope 64, nope 192, value 256, indexer heads of 128); other sizes
are parameters. Written with the gguf package, so nothing here shares code with the reader under test.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from tests.support.random_blocks import Floats, floats_of, pack_floats, random_blocks
from tests.support.tiny_metadata import hf_config, write_metadata
from tests.support.tiny_spec import INDEX_DIM, KV_LORA, NOPE, ROPE, VALUE, TinySpec
from tests.support.tiny_tokenizer import TinyTokenizer, tiny_tokenizer


@dataclass(frozen=True)
class TinyModel:
    """A written model: its files, the config.json that belongs to it, and float32 weights by HF name."""

    spec: TinySpec
    paths: tuple[Path, ...]
    tokenizer: TinyTokenizer
    hf_config: dict[str, Any]
    reference: dict[str, Floats]

    @property
    def path(self) -> Path:
        """The file to name: the only one, or the first split."""
        return self.paths[0]

    def mtp_reference(self) -> dict[str, Floats]:
        """The weights of the MTP block by HF name, without the layer's prefix."""
        prefix = f"model.layers.{self.spec.layers}."
        found = self.reference.items()
        return {name.removeprefix(prefix): values for name, values in found if name.startswith(prefix)}

    def write_reference(self, folder: Path) -> Path:
        """Write config.json and model.safetensors that transformers loads; the MTP block is left out."""
        from safetensors.numpy import save_file

        folder.mkdir(parents=True, exist_ok=True)
        mtp = f"model.layers.{self.spec.layers}."
        main = {
            name: np.ascontiguousarray(x) for name, x in self.reference.items() if not name.startswith(mtp)
        }
        save_file(main, folder / "model.safetensors", metadata={"format": "pt"})
        return self.write_config(folder)

    def write_config(self, folder: Path) -> Path:
        """Write config.json alone, for an engine that is given token ids."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.hf_config, indent=2))
        return folder


def write_tiny(folder: Path, spec: TinySpec | None = None) -> TinyModel:
    """Write the model that `spec` describes into `folder`, which is made if needed."""
    spec = spec or TinySpec()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = spec.tokenizer or tiny_tokenizer(spec.vocab)
    tensors = _Tensors(spec, len(tokenizer.tokens))
    tensors.draw()
    writer = gguf.GGUFWriter(
        folder / f"{spec.name}.gguf",
        "glm-dsa",
        split_max_tensors=0 if spec.splits == 1 else -(-len(tensors.packed) // spec.splits),
        small_first_shard=spec.metadata_only_first,
    )
    write_metadata(writer, spec, tokenizer)
    for name, (data, kind) in tensors.packed.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    paths = tuple(sorted(folder.glob(f"{spec.name}*.gguf")))
    return TinyModel(spec, paths, tokenizer, hf_config(spec, tokenizer), tensors.reference)


class _Tensors:
    """Draws every tensor of a model: `packed` by GGUF name for the writer, `reference` by HF name."""

    def __init__(self, spec: TinySpec, vocab: int) -> None:
        self.spec = spec
        self.vocab = vocab
        self.packed: dict[str, tuple[Any, Type]] = {}
        self.reference: dict[str, Floats] = {}
        self._rng = np.random.default_rng(spec.seed)

    def draw(self) -> None:
        spec, quants = self.spec, self.spec.quants
        self._matrix(
            "token_embd", "model.embed_tokens", quants.embedding, self.vocab, spec.hidden, deviation=1.0
        )
        for layer in range(spec.layers + spec.mtp):
            self._attention(layer)
            if layer not in spec.shared_layers or spec.repeat_indexer:
                self._indexer(layer)
            if layer < spec.dense_layers:
                self._dense(layer)
            else:
                self._experts(layer)
            if layer >= spec.layers:
                self._mtp(layer)
        self._vector("output_norm.weight", "model.norm.weight", spec.hidden)
        self._matrix("output", "lm_head", quants.output, self.vocab, spec.hidden)

    def _attention(self, layer: int) -> None:
        spec, quants = self.spec, self.spec.quants
        block, hf = f"blk.{layer}.", f"model.layers.{layer}."
        attention = hf + "self_attn."
        self._vector(block + "attn_norm.weight", hf + "input_layernorm.weight", spec.hidden)
        self._vector(block + "ffn_norm.weight", hf + "post_attention_layernorm.weight", spec.hidden)
        self._matrix(block + "attn_q_a", attention + "q_a_proj", quants.q_a, spec.q_lora, spec.hidden)
        self._vector(block + "attn_q_a_norm.weight", attention + "q_a_layernorm.weight", spec.q_lora)
        rows = spec.heads * (NOPE + ROPE)
        self._matrix(block + "attn_q_b", attention + "q_b_proj", quants.q_b, rows, spec.q_lora)
        self._matrix(
            block + "attn_kv_a_mqa",
            attention + "kv_a_proj_with_mqa",
            quants.kv_a,
            KV_LORA + ROPE,
            spec.hidden,
        )
        self._vector(block + "attn_kv_a_norm.weight", attention + "kv_a_layernorm.weight", KV_LORA)
        self._kv_b(block, attention)
        self._matrix(
            block + "attn_output",
            attention + "o_proj",
            quants.attention_output,
            spec.hidden,
            spec.heads * VALUE,
        )

    def _kv_b(self, block: str, attention: str) -> None:
        spec, quants = self.spec, self.spec.quants
        if spec.layout == "kv_b":
            rows = spec.heads * (NOPE + VALUE)
            self._matrix(block + "attn_kv_b", attention + "kv_b_proj", quants.v_b, rows, KV_LORA)
            return
        flat = spec.layout == "split2d"
        k_shape = (spec.heads * KV_LORA, NOPE) if flat else (spec.heads, KV_LORA, NOPE)
        v_shape = (spec.heads * VALUE, KV_LORA) if flat else (spec.heads, VALUE, KV_LORA)
        k_b = self._add(block + "attn_k_b.weight", quants.k_b, k_shape, KV_LORA**-0.5)
        v_b = self._add(block + "attn_v_b.weight", quants.v_b, v_shape, KV_LORA**-0.5)
        keys = k_b.reshape(spec.heads, KV_LORA, NOPE).swapaxes(1, 2)
        fused = np.concatenate([keys, v_b.reshape(spec.heads, VALUE, KV_LORA)], axis=1)
        self.reference[attention + "kv_b_proj.weight"] = fused.reshape(-1, KV_LORA)

    def _indexer(self, layer: int) -> None:
        spec, quants = self.spec, self.spec.quants
        block, hf = f"blk.{layer}.indexer.", f"model.layers.{layer}.self_attn.indexer."
        self._matrix(
            block + "attn_q_b", hf + "wq_b", quants.indexer, spec.index_heads * INDEX_DIM, spec.q_lora
        )
        self._matrix(block + "attn_k", hf + "wk", quants.indexer, INDEX_DIM, spec.hidden)
        self._matrix(block + "proj", hf + "weights_proj", quants.indexer_proj, spec.index_heads, spec.hidden)
        self._vector(block + "k_norm.weight", hf + "k_norm.weight", INDEX_DIM)
        self._vector(block + "k_norm.bias", hf + "k_norm.bias", INDEX_DIM, mean=0.0)

    def _dense(self, layer: int) -> None:
        spec, quants = self.spec, self.spec.quants
        block, hf = f"blk.{layer}.", f"model.layers.{layer}.mlp."
        for part in ("gate", "up"):
            name = f"{block}ffn_{part}"
            self._matrix(name, f"{hf}{part}_proj", quants.dense_in, spec.dense_intermediate, spec.hidden)
        self._matrix(
            block + "ffn_down", hf + "down_proj", quants.dense_down, spec.hidden, spec.dense_intermediate
        )

    def _experts(self, layer: int) -> None:
        spec, quants = self.spec, self.spec.quants
        block, hf = f"blk.{layer}.", f"model.layers.{layer}.mlp."
        wide, hidden = spec.expert_intermediate, spec.hidden
        self._matrix(block + "ffn_gate_inp", hf + "gate", quants.router, spec.experts, hidden)
        bias = self._rng.standard_normal(spec.experts, np.float32) * 0.1
        self._floats(block + "exp_probs_b.bias", hf + "gate.e_score_correction_bias", bias)
        shapes = {"gate": (wide, hidden), "up": (wide, hidden), "down": (hidden, wide)}
        for part, (rows, columns) in shapes.items():
            quant = {"gate": quants.gate, "up": quants.up, "down": quants.down}[part]
            all_experts = self._add(
                f"{block}ffn_{part}_exps.weight", quant, (spec.experts, rows, columns), columns**-0.5
            )
            for expert, values in enumerate(all_experts):
                self.reference[f"{hf}experts.{expert}.{part}_proj.weight"] = values
            self._matrix(
                f"{block}ffn_{part}_shexp", f"{hf}shared_experts.{part}_proj", quants.shared, rows, columns
            )

    def _mtp(self, layer: int) -> None:
        block, hf, hidden = f"blk.{layer}.nextn.", f"model.layers.{layer}.", self.spec.hidden
        self._matrix(block + "eh_proj", hf + "eh_proj", "Q8_0", hidden, 2 * hidden)
        self._vector(block + "enorm.weight", hf + "enorm.weight", hidden)
        self._vector(block + "hnorm.weight", hf + "hnorm.weight", hidden)
        self._vector(block + "shared_head_norm.weight", hf + "shared_head.norm.weight", hidden)

    def _matrix(
        self, name: str, hf: str, quant: str, rows: int, columns: int, *, deviation: float | None = None
    ) -> None:
        shape = (rows, columns)
        values = self._add(f"{name}.weight", quant, shape, deviation or columns**-0.5)
        self.reference[f"{hf}.weight"] = values

    def _vector(self, name: str, hf: str, size: int, *, mean: float = 1.0) -> None:
        self._floats(name, hf, mean + self._rng.standard_normal(size, np.float32) * 0.1)

    def _floats(self, name: str, hf: str, values: Floats) -> None:
        self.packed[name] = (pack_floats(values, "F32")[1], Type.F32)
        self.reference[hf] = values

    def _add(self, name: str, quant: str, shape: tuple[int, ...], deviation: float) -> Floats:
        packed = random_blocks(self._rng, shape, quant, deviation)
        self.packed[name] = (_for_writer(packed, quant), Type[quant])
        # a view of one zero where nobody asks for the floats
        is_asked = self.spec.with_reference
        return floats_of(packed, quant) if is_asked else np.broadcast_to(np.float32(0), shape)


def _for_writer(packed: Any, quant: str) -> Any:
    """The gguf package takes F32 and F16 as such and all other types as bytes."""
    dtype = {"F32": np.float32, "F16": np.float16}.get(quant, np.uint8)
    return packed.view(dtype)
