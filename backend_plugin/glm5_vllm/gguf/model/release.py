"""Which published GLM-5 a file is, and with that which layers share an indexer: one decision, with its evidence.

GLM-5 and 5.1 run the sparse-attention indexer in every layer. GLM-5.2 and 5.3 run it in 21 of 78; the others reuse the
last selection (IndexShare). A file taken for the wrong one answers differently beyond index_topk tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from glm5_vllm.gguf.errors import CONVERT, GGUFError
from glm5_vllm.gguf.file.header import ArrayValue, Header, TensorInfo, read_bytes
from glm5_vllm.gguf.model.hyperparameters import ARCHITECTURE, Hyperparameters
from glm5_vllm.gguf.printable import NAME_LIMIT, printable

FULL, SHARED = "full", "shared"
PATTERN_KEYS = f"{ARCHITECTURE}.attention.indexer"
# what tells the published releases apart (their config.json); a file of another depth is none of them
PUBLISHED_LAYERS = 78
EARLIER, LATER = "GLM-5 or GLM-5.1", "GLM-5.2 or later"
ROPE_BASES = {1e6: False, 8e6: True}
# below it a context says nothing: it may have been lowered
LATER_CONTEXT = 1 << 20
# index_topk_freq and index_skip_topk_offset of GLM-5.2 and 5.3
SHARED_FREQUENCY, SHARED_OFFSET = 4, 3
# the releases that a setting may name
DECIDABLE = ("5", "5.1", "5.2", "5.3")

_SPELLINGS = {True: FULL, False: SHARED, FULL: FULL, SHARED: SHARED}
_NAMED = re.compile(r"glm[-_ ]?5(?:\.(\d{1,3}))?(?![\d.])", re.IGNORECASE)
_NORM = "blk.{layer}.indexer.k_norm.weight"


@dataclass(frozen=True, slots=True)
class Statement:
    """What one place of the file says: whether layers share, and which, where it says that."""

    text: str
    is_shared: bool
    pattern: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """The decision: `name` as people know it, `is_later` for GLM-5.2 and later, one indexer type a main layer."""

    name: str
    is_later: bool
    indexer_types: tuple[str, ...]
    evidence: tuple[str, ...]


def decide_release(
    header: Header, h: Hyperparameters, tensors: Mapping[str, TensorInfo], setting: str | None = None
) -> Release:
    """Weigh what the file says.

    Args:
        header: the header that carries the model's metadata.
        h: its hyperparameters.
        tensors: all tensors of the model by name.
        setting: one of DECIDABLE, which then decides.

    Raises:
        GGUFError: statements disagree and no setting decides, a key is no such list, or the first layer is shared.
    """
    if setting is not None and setting not in DECIDABLE:
        expected = f"one of {', '.join(DECIDABLE)}"
        raise GGUFError(
            "GLM5_MODEL_RELEASE", setting, expected=expected, remedy="Leave it unset to let the file decide"
        )
    statements = [*_patterns(header, h, tensors), *_hints(header, h)]
    if setting is None:
        _check_agreement(header, statements)
        is_shared = any(each.is_shared for each in statements)
    else:
        is_shared = int(setting.partition(".")[2] or 0) >= 2
    default = tuple(_scheduled(layer) for layer in range(h.layers)) if is_shared else (FULL,) * h.layers
    patterns = (each.pattern for each in statements if each.pattern and each.is_shared == is_shared)
    types = next(patterns, default)
    if types[0] != FULL:
        expected = f"{FULL}, for no layer before it selects"
        raise _wrong(header, "the indexer of layer 0", types[0], expected)
    evidence = tuple(each.text for each in statements)
    if setting is not None:
        evidence = (f"the setting says {setting}", *evidence)
    is_published = h.layers == PUBLISHED_LAYERS or setting is not None
    is_later = is_shared and (is_published or h.context_length >= LATER_CONTEXT)
    return Release(_name(header, setting, is_published, is_later), is_later, types, evidence)


def _patterns(header: Header, h: Hyperparameters, tensors: Mapping[str, TensorInfo]) -> list[Statement]:
    """Statements about each layer, the most explicit one first."""
    found = []
    if f"{PATTERN_KEYS}.types" in header.metadata:
        found.append(_stated("attention.indexer.types", _from_types(header, h)))
    if f"{PATTERN_KEYS}.top_k_frequency" in header.metadata:
        found.append(_stated("attention.indexer.top_k_frequency", _from_frequency(header, h)))
    carriers = _carriers(tensors)
    if not found and any(layer not in carriers for layer in range(h.layers)):
        pattern = tuple(FULL if layer in carriers else SHARED for layer in range(h.layers))
        found.append(_stated("indexer tensors left out", pattern))
    copies = _copies(h, tensors)
    if copies is not None and SHARED in copies:
        found.append(_stated("indexer weights that repeat the layer before", copies))
    elif copies is not None and h.layers == PUBLISHED_LAYERS:
        # no converter invents weights for a layer that the publisher gives none
        found.append(_hint("indexer weights of every layer differ", False))
    return found


def _stated(what: str, pattern: tuple[str, ...]) -> Statement:
    count = pattern.count(SHARED)
    return Statement(f"{what}: {count} of {len(pattern)} layers share", count > 0, pattern)


def _carriers(tensors: Mapping[str, TensorInfo]) -> set[int]:
    """The blocks that carry indexer tensors."""
    names = (name.split(".") for name in tensors)
    return {
        int(parts[1])
        for parts in names
        if parts[0] == "blk" and parts[2:3] == ["indexer"] and parts[1].isdigit()
    }


def _from_types(header: Header, h: Hyperparameters) -> tuple[str, ...]:
    key = f"{PATTERN_KEYS}.types"
    value = header.metadata[key]
    # one value for all layers is how llama.cpp writes a constant list
    values = header.read_array(key) if isinstance(value, ArrayValue) else [value] * h.layers
    if len(values) not in (h.layers, h.blocks):
        raise _wrong(header, f"entries of metadata key {key}", len(values), f"{h.layers}, one a layer")
    try:
        return tuple(_SPELLINGS[each] for each in values[: h.layers])  # type: ignore[index]
    except KeyError as error:
        raise _wrong(header, f"metadata key {key}", error.args[0], "full or shared, or 1 or 0") from None


def _from_frequency(header: Header, h: Hyperparameters) -> tuple[str, ...]:
    names = (f"{PATTERN_KEYS}.top_k_frequency", f"{PATTERN_KEYS}.skip_top_k_offset")
    numbers = []
    for name, minimum, default in zip(names, (1, 0), (1, SHARED_OFFSET), strict=True):
        value = header.metadata.get(name, default)
        if type(value) is not int or not minimum <= value <= h.layers:
            raise _wrong(header, f"metadata key {name}", value, f"an integer from {minimum} to {h.layers}")
        numbers.append(value)
    return tuple(_scheduled(layer, *numbers) for layer in range(h.layers))


def _copies(h: Hyperparameters, tensors: Mapping[str, TensorInfo]) -> tuple[str, ...] | None:
    """Which layers hold the bytes of the layer before; None where the bytes tell nothing, as in an untrained file."""
    norms = [tensors.get(_NORM.format(layer=layer)) for layer in range(h.layers)]
    if h.layers < 2 or any(norm is None or not norm.quant.is_float for norm in norms):
        return None
    held = [read_bytes(norm, min(norm.nbytes, 512)) for norm in norms if norm is not None]
    if any(data == data[:4] * (len(data) // 4) for data in held):
        return None
    same = [layer > 0 and held[layer] == held[layer - 1] for layer in range(h.layers)]
    return tuple(SHARED if each else FULL for each in same)


def _hints(header: Header, h: Hyperparameters) -> list[Statement]:
    """Statements about the release."""
    found = []
    if h.layers == PUBLISHED_LAYERS:
        if (is_later := ROPE_BASES.get(h.rope_theta)) is not None:
            found.append(_hint(f"rope.freq_base {h.rope_theta:.0f}", is_later))
        found += [_hint(f"general.{key} {value}", minor >= 2) for key, value, minor in _named(header)]
    if h.context_length >= LATER_CONTEXT:
        found.append(_hint(f"context_length {h.context_length}", True))
    return found


def _hint(what: str, is_later: bool) -> Statement:
    return Statement(f"{what}: {LATER if is_later else EARLIER}", is_later)


def _named(header: Header) -> list[tuple[str, str, int]]:
    """(key, value, minor version) of the keys that name a GLM-5."""
    found = []
    for key, prefix in (("version", "glm-"), ("name", "")):
        value = header.metadata.get(f"general.{key}")
        if isinstance(value, str) and (match := _NAMED.match(f"{prefix}{value.strip()}")):
            found.append((key, printable(value.strip(), NAME_LIMIT), int(match[1] or 0)))
    return found


def _check_agreement(header: Header, statements: list[Statement]) -> None:
    for i, one in enumerate(statements):
        for other in statements[i + 1 :]:
            both = one.pattern is not None and other.pattern is not None
            if one.is_shared != other.is_shared or (both and one.pattern != other.pattern):
                raise GGUFError(
                    f"{header.path.name} contradicts itself on which GLM-5 it is",
                    f"{one.text}, but {other.text}",
                    expected="one answer",
                    remedy="Check where the file comes from, or decide with model.release (--release), "
                    f"one of {', '.join(DECIDABLE)}",
                )


def _name(header: Header, setting: str | None, is_published: bool, is_later: bool) -> str:
    if setting is not None:
        return f"GLM-{setting}"
    for _, _, minor in _named(header) if is_published else ():
        if (minor >= 2) == is_later:
            return f"GLM-5.{minor}" if minor else "GLM-5"
    if is_later:
        return LATER
    return EARLIER if is_published else "no published GLM-5"


def _scheduled(layer: int, frequency: int = SHARED_FREQUENCY, offset: int = SHARED_OFFSET) -> str:
    return SHARED if max(layer - offset + 1, 0) % frequency else FULL


def _wrong(header: Header, what: str, value: object, expected: str) -> GGUFError:
    return GGUFError(f"{header.path.name}: {what}", value, expected=expected, remedy=CONVERT)
