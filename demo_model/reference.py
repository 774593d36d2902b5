"""The demo model as transformers sees it: `python -m demo_model.reference DIR`.

Reads the committed splits with gguf-py, dequantises them with gguf-py, and writes a Hugging Face folder (config,
float32 safetensors, tokenizer). It shares no code with the loader it is compared with. Next hop: check.py, tests.
"""

import argparse
from pathlib import Path
from typing import Final

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import models
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM, PreTrainedTokenizerFast

from demo_model import architecture, vocabulary
from demo_model.export import NAME, SPLITS

FOLDER: Final = Path(__file__).parent
# GGUF name of a layer's tensor -> name in transformers; kv_b and the experts are put together by hand
LAYER_NAMES: Final = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q_a.weight": "self_attn.q_a_proj.weight",
    "attn_q_a_norm.weight": "self_attn.q_a_layernorm.weight",
    "attn_q_b.weight": "self_attn.q_b_proj.weight",
    "attn_kv_a_mqa.weight": "self_attn.kv_a_proj_with_mqa.weight",
    "attn_kv_a_norm.weight": "self_attn.kv_a_layernorm.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "indexer.attn_q_b.weight": "self_attn.indexer.wq_b.weight",
    "indexer.attn_k.weight": "self_attn.indexer.wk.weight",
    "indexer.k_norm.weight": "self_attn.indexer.k_norm.weight",
    "indexer.k_norm.bias": "self_attn.indexer.k_norm.bias",
    "indexer.proj.weight": "self_attn.indexer.weights_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
    "ffn_gate_shexp.weight": "mlp.shared_experts.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_experts.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_experts.down_proj.weight",
}
OUTER_NAMES: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def splits(folder: Path = FOLDER) -> list[Path]:
    """Paths of the three splits, in order."""
    return [folder / f"{NAME}-{i:05d}-of-{SPLITS:05d}.gguf" for i in range(1, SPLITS + 1)]


def load_tokenizer(folder: Path = FOLDER) -> PreTrainedTokenizerFast:
    """The tokenizer from the metadata of the first split."""
    reader = GGUFReader(splits(folder)[0])
    tokens, merges = (reader.get_field(f"tokenizer.ggml.{key}").contents() for key in ("tokens", "merges"))
    special = {*vocabulary.CONTROL, *vocabulary.VISIBLE}
    vocab = {token: i for i, token in enumerate(tokens) if token not in special}
    model = models.BPE(vocab=vocab, merges=[tuple(rule.split(" ")) for rule in merges])
    return vocabulary.wrap(vocabulary.with_special_tokens(vocabulary.with_pattern(model)))


def dequantised(folder: Path = FOLDER) -> dict[str, np.ndarray]:
    """All tensors of the splits as float32, under their GGUF names."""
    tensors = [t for path in splits(folder) for t in GGUFReader(path).tensors]
    return {t.name: np.array(dequantize(t.data, t.tensor_type), np.float32) for t in tensors}


def state_dict(tensors: dict[str, np.ndarray], config: GlmMoeDsaConfig) -> dict[str, torch.Tensor]:
    """GGUF tensors under transformers' names: k_b and v_b joined to kv_b, gate and up of the experts stacked."""
    rest = dict(tensors)
    state = {hf: rest.pop(name) for name, hf in OUTER_NAMES.items()}
    for i in range(config.num_hidden_layers):
        block, layer = f"blk.{i}.", f"model.layers.{i}."
        k_b, v_b = rest.pop(block + "attn_k_b.weight"), rest.pop(block + "attn_v_b.weight")
        kv_b = np.concatenate([k_b.transpose(0, 2, 1), v_b], axis=1)
        state[layer + "self_attn.kv_b_proj.weight"] = kv_b.reshape(-1, config.kv_lora_rank)
        if i >= config.first_k_dense_replace:
            gate, up = rest.pop(block + "ffn_gate_exps.weight"), rest.pop(block + "ffn_up_exps.weight")
            state[layer + "mlp.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        for name in [n for n in rest if n.startswith(block)]:
            state[layer + LAYER_NAMES[name.removeprefix(block)]] = rest.pop(name)
    if rest:
        raise ValueError(f"tensors without a place in the model: {sorted(rest)}; expected none")
    return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in state.items()}


def load_model(folder: Path = FOLDER) -> GlmMoeDsaForCausalLM:
    """The model in float32 with the weights that the file holds, ready to answer."""
    config = architecture.config(load_tokenizer(folder))
    model = GlmMoeDsaForCausalLM._from_config(config, attn_implementation="eager", dtype=torch.float32)
    model.load_state_dict(state_dict(dequantised(folder), config))
    return model.eval()


def write(target: Path, folder: Path = FOLDER) -> None:
    """A Hugging Face folder of the dequantised model."""
    load_model(folder).save_pretrained(target)
    load_tokenizer(folder).save_pretrained(target)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path, help="folder to write, 65 MB")
    parser.add_argument("--model", type=Path, default=FOLDER, help="folder with the splits")
    args = parser.parse_args()
    write(args.target, args.model)


if __name__ == "__main__":
    main()
