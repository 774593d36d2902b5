"""Dense layers of packed types become float layers once they are loaded.

The packed rows of a rank are dequantised on its device, so the file is read and cut as before, and the host never holds
floats. vLLM's own float method then multiplies. The packed product of
vllm-gguf-plugin takes 2 to 20 times as long from 8 rows on (products/README.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod
from vllm_gguf_plugin import ops
from vllm_gguf_plugin.quantization.linear import GGUFLinearMethod

from glm5_vllm.gguf.file.quant_types import BY_ID, QuantType
from glm5_vllm.gguf.plan.held import HELD_AS_FLOAT


def hold_as_float(model: nn.Module, dtype: torch.dtype) -> int:
    """Turn each dense layer of `model` whose types are all in `HELD_AS_FLOAT` into a float layer of `dtype`.

    The layers' tensors are placed already, and vLLM has not processed them. Embeddings stay packed: a step reads a row
    of them for each token. Returns the number of layers that changed.
    """
    layers = [layer for layer in model.modules() if _is_packed_product(layer)]
    return sum(_hold(layer, dtype) for layer in layers)


def _is_packed_product(layer: Any) -> bool:
    return isinstance(layer, LinearBase | ParallelLMHead) and isinstance(layer.quant_method, GGUFLinearMethod)


def _hold(layer: Any, dtype: torch.dtype) -> bool:
    # the plugin joins the parts of a layer when it processes it
    layer.quant_method.process_weights_after_loading(layer)
    parts = list(_parts(layer))
    if not HELD_AS_FLOAT.issuperset(quant for _, quant in parts):
        return False
    weight = torch.cat([_floats(rows, quant, dtype) for rows, quant in parts])
    del layer.qweight, layer.qweight_type
    layer.weight = Parameter(weight, requires_grad=False)
    is_head = isinstance(layer, ParallelLMHead)
    layer.quant_method = UnquantizedEmbeddingMethod() if is_head else UnquantizedLinearMethod()
    return True


def _parts(layer: Any) -> Iterable[tuple[torch.Tensor, QuantType]]:
    """Packed rows of each part of a layer, in the order of its output, and their type."""
    qweight, types = layer.qweight, layer.qweight_type
    if not qweight.shard_id:
        return [(qweight.data, BY_ID[types.weight_type])]
    return [
        (
            qweight.data[start:end, :nbytes].contiguous(),
            BY_ID[types.shard_weight_type.get(part, types.weight_type)],
        )
        for part, (start, end, nbytes) in qweight.shard_offset_map.items()
    ]


def _floats(rows: torch.Tensor, quant: QuantType, dtype: torch.dtype) -> torch.Tensor:
    """uint8 [rows, bytes of a row] -> [rows, columns] in dtype."""
    columns = rows.shape[1] // quant.block_bytes * quant.block_elements
    return ops.ggml_dequantize(rows, quant.type_id, rows.shape[0], columns, dtype)
