"""The quant types that llama-quantize puts into a GLM-5 file of each name, with the largest ones that it may take.

From llama.cpp's choice by kind of tensor and its fallback for rows that are no whole number of blocks. Not here: Q1_0,
Q2_0, TQ1_0, TQ2_0, MXFP4_MOE and NVFP4, which no kernel of vllm-gguf-plugin takes.
"""

from __future__ import annotations

from tests.support.tiny_spec import QuantMix


def _mix(
    base: str,
    k_b: str,
    *,
    output: str = "Q6_K",
    embedding: str = "",
    attention_output: str = "",
    first_down: str = "",
    down: str = "",
    gate: str = "",
) -> QuantMix:
    """`base` everywhere but for `k_b` and what is named."""
    types = dict.fromkeys(QuantMix.__dataclass_fields__, base) | {
        "router": "F32",
        "k_b": k_b,
        "output": output,
    }
    named = {
        "embedding": embedding,
        "attention_output": attention_output,
        "dense_down": first_down,
        "down": down,
        "gate": gate,
        "up": gate,
    }
    return QuantMix(**types | {name: quant for name, quant in named.items() if quant})


FILES = {
    # with an importance matrix, the first down projections of Q4_0 and Q5_0 have a minimum
    "Q4_0": _mix("Q4_0", "Q4_0", first_down="Q4_1"),
    "Q4_1": _mix("Q4_1", "Q4_1"),
    "Q5_0": _mix("Q5_0", "Q5_0", first_down="Q5_1"),
    "Q5_1": _mix("Q5_1", "Q5_1"),
    "Q8_0": _mix("Q8_0", "Q8_0", output="Q8_0"),
    "Q2_K_S": _mix("Q2_K", "Q4_0", first_down="Q4_K"),
    "Q2_K": _mix("Q2_K", "Q4_0", attention_output="Q3_K", first_down="Q3_K", down="Q3_K"),
    "Q3_K_S": _mix("Q3_K", "Q4_0"),
    "Q3_K_M": _mix("Q3_K", "Q4_0", attention_output="Q4_K", first_down="Q5_K", down="Q4_K"),
    "Q3_K_L": _mix("Q3_K", "Q4_0", attention_output="Q5_K", first_down="Q5_K", down="Q5_K"),
    "Q4_K_S": _mix("Q4_K", "Q5_0", first_down="Q5_K"),
    "Q4_K_M": _mix("Q4_K", "Q5_0", first_down="Q6_K"),
    "Q5_K_S": _mix("Q5_K", "Q5_1"),
    "Q5_K_M": _mix("Q5_K", "Q5_1", first_down="Q6_K"),
    "Q6_K": _mix("Q6_K", "Q8_0"),
    "IQ1_S": _mix(
        "IQ1_S", "IQ4_NL", output="Q5_K", embedding="Q2_K", attention_output="IQ2_XXS", first_down="Q2_K"
    ),
    "IQ1_M": _mix(
        "IQ1_M", "IQ4_NL", output="Q5_K", embedding="Q2_K", attention_output="IQ2_XXS", first_down="Q2_K"
    ),
    "IQ2_XXS": _mix("IQ2_XXS", "IQ4_NL", output="Q5_K", embedding="Q2_K", first_down="Q2_K"),
    "IQ2_XS": _mix("IQ2_XS", "IQ4_NL", output="Q5_K", embedding="Q2_K", first_down="Q2_K"),
    "IQ2_S": _mix(
        "IQ2_XS", "IQ4_NL", output="Q5_K", embedding="IQ3_S", attention_output="IQ3_S", first_down="IQ3_S"
    ),
    "IQ2_M": _mix(
        "IQ2_S", "IQ4_NL", output="Q5_K", embedding="IQ3_S", attention_output="IQ3_S", first_down="IQ3_S"
    ),
    "IQ3_XXS": _mix("IQ3_XXS", "IQ4_NL", output="Q5_K", embedding="IQ3_S", attention_output="IQ3_S"),
    "IQ3_XS": _mix("IQ3_S", "IQ4_NL", gate="IQ3_XXS"),
    "IQ3_S": _mix("IQ3_S", "IQ4_NL"),
    "IQ3_M": _mix("IQ3_S", "IQ4_NL", attention_output="Q4_K", first_down="Q4_K"),
    "IQ4_NL": _mix("IQ4_NL", "IQ4_NL", first_down="Q5_K"),
    "IQ4_XS": _mix("IQ4_XS", "IQ4_NL", first_down="Q5_K"),
}
