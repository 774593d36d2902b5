"""Every ggml tensor type: id, name and block layout, and which of them we load. Policy as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuantType:
    """One ggml tensor type: `block_bytes` bytes hold `block_elements` consecutive elements of a row."""

    type_id: int
    name: str
    block_elements: int
    block_bytes: int

    @property
    def is_float(self) -> bool:
        """Whether the elements are plain floats, which vLLM holds as such."""
        return self.name in FLOAT_NAMES


# the 16 values of ggml's non-linear 4-bit types (kvalues_iq4nl)
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FLOAT_NAMES = frozenset({"F32", "F16", "BF16"})

# block layouts as ggml-common.h lays them out; the test compares them with the gguf package's table
ALL_TYPES = (
    QuantType(0, "F32", 1, 4),
    QuantType(1, "F16", 1, 2),
    QuantType(2, "Q4_0", 32, 18),
    QuantType(3, "Q4_1", 32, 20),
    QuantType(6, "Q5_0", 32, 22),
    QuantType(7, "Q5_1", 32, 24),
    QuantType(8, "Q8_0", 32, 34),
    QuantType(9, "Q8_1", 32, 40),
    QuantType(10, "Q2_K", 256, 84),
    QuantType(11, "Q3_K", 256, 110),
    QuantType(12, "Q4_K", 256, 144),
    QuantType(13, "Q5_K", 256, 176),
    QuantType(14, "Q6_K", 256, 210),
    QuantType(15, "Q8_K", 256, 292),
    QuantType(16, "IQ2_XXS", 256, 66),
    QuantType(17, "IQ2_XS", 256, 74),
    QuantType(18, "IQ3_XXS", 256, 98),
    QuantType(19, "IQ1_S", 256, 50),
    QuantType(20, "IQ4_NL", 32, 18),
    QuantType(21, "IQ3_S", 256, 110),
    QuantType(22, "IQ2_S", 256, 82),
    QuantType(23, "IQ4_XS", 256, 136),
    QuantType(24, "I8", 1, 1),
    QuantType(25, "I16", 1, 2),
    QuantType(26, "I32", 1, 4),
    QuantType(27, "I64", 1, 8),
    QuantType(28, "F64", 1, 8),
    QuantType(29, "IQ1_M", 256, 56),
    QuantType(30, "BF16", 1, 2),
    QuantType(34, "TQ1_0", 256, 54),
    QuantType(35, "TQ2_0", 256, 66),
    QuantType(39, "MXFP4", 32, 17),
    QuantType(40, "NVFP4", 64, 36),
    QuantType(41, "Q1_0", 128, 18),
)

BY_ID = {quant.type_id: quant for quant in ALL_TYPES}
BY_NAME = {quant.name: quant for quant in ALL_TYPES}

# a type is here when values/ has its reference and kernels of the plugin take it for linear layers, embeddings and
# experts. llama-quantize writes types that its file is not named after: it keeps weightier tensors in larger ones, and
# rows that are no whole number of blocks in types of smaller blocks (attn_k_b's 192 of a Q5_K_M file in Q5_1)
LOADABLE_NAMES = (
    "Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q3_K", "Q2_K", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_XS", "IQ4_NL", "IQ3_S",
    "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S", "F16", "BF16", "F32",
)  # fmt: skip
# the way out where a type is refused; llama-quantize's files of these names have no other types
CHOOSE_ANOTHER = (
    "Choose another quantisation: Q2_K to Q6_K, IQ1_S to IQ4_XS, Q4_0 to Q8_0, F16 and BF16 files load"
)
LOADABLE = frozenset(BY_NAME[name] for name in LOADABLE_NAMES)
LOADABLE_FLOAT = frozenset(quant for quant in LOADABLE if quant.is_float)
