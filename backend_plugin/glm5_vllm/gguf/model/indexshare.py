"""Which layers run the sparse-attention indexer and which reuse the last selection (IndexShare).

GLM-5 and 5.1 run it in every layer, GLM-5.2 in 21 of 78. Files state it by a key, by leaving out the tensors
of the layers that share, or not at all.
"""

from __future__ import annotations

from collections.abc import Collection

from glm5_vllm.gguf.errors import CONVERT, GGUFError
from glm5_vllm.gguf.file.header import ArrayValue, Header
from glm5_vllm.gguf.model.hyperparameters import Hyperparameters

KEY_TYPES = "glm-dsa.attention.indexer.types"
FULL, SHARED = "full", "shared"
_SPELLINGS = {True: FULL, False: SHARED, FULL: FULL, SHARED: SHARED}

# llama.cpp's rule (src/models/glm-dsa.cpp) for files without the key: a context of one million tokens means
# GLM-5.2, whose config.json says index_topk_freq 4 and index_skip_topk_offset 3. Published 5.2 files have
# the indexer's tensors in every layer, so their presence tells nothing there.
SHARED_FROM_CONTEXT = 1 << 20
SHARED_FREQUENCY = 4
SHARED_OFFSET = 3


def indexer_types(header: Header, h: Hyperparameters, carriers: Collection[int]) -> tuple[str, ...]:
    """Return "full" or "shared" for each main layer.

    Args:
        header: the header that carries the model's metadata.
        h: its hyperparameters.
        carriers: the layers that carry indexer tensors.

    Raises:
        GGUFError: the key's value is not such a list, or the first layer is shared.
    """
    if KEY_TYPES in header.metadata:
        types = _from_key(header, h)
    elif any(layer not in carriers for layer in range(h.layers)):
        types = tuple(FULL if layer in carriers else SHARED for layer in range(h.layers))
    elif h.context_length >= SHARED_FROM_CONTEXT:
        types = tuple(_scheduled(layer) for layer in range(h.layers))
    else:
        types = (FULL,) * h.layers
    if types[0] != FULL:
        raise _wrong(header, "the indexer of layer 0", types[0], f"{FULL}, for no layer before it selects")
    return types


def _from_key(header: Header, h: Hyperparameters) -> tuple[str, ...]:
    value = header.metadata[KEY_TYPES]
    # one value for all layers is how llama.cpp writes a constant list
    values = header.read_array(KEY_TYPES) if isinstance(value, ArrayValue) else [value] * h.layers
    if len(values) not in (h.layers, h.blocks):
        raise _wrong(header, f"entries of metadata key {KEY_TYPES}", len(values), f"{h.layers}, one a layer")
    try:
        return tuple(_SPELLINGS[each] for each in values[: h.layers])  # type: ignore[index]
    except KeyError as error:
        raise _wrong(
            header, f"metadata key {KEY_TYPES}", error.args[0], "full or shared, or 1 or 0"
        ) from None


def _scheduled(layer: int) -> str:
    return SHARED if max(layer - SHARED_OFFSET + 1, 0) % SHARED_FREQUENCY else FULL


def _wrong(header: Header, what: str, value: object, expected: str) -> GGUFError:
    return GGUFError(f"{header.path.name}: {what}", value, expected=expected, remedy=CONVERT)
