"""What a loader must place equals the generator's reference, byte for byte, in every layout, split and quant mix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glm5_vllm.gguf.file.read import TensorReader
from glm5_vllm.gguf.file.splits import open_model
from glm5_vllm.gguf.plan.planner import plan_load
from glm5_vllm.gguf.values.floats import read_float
from tests.support.llama_quantize import FILES
from tests.support.tiny_gguf import write_tiny
from tests.support.tiny_spec import SMALL, QuantMix, TinySpec

MIXES = {
    "floats": QuantMix(**dict.fromkeys(QuantMix.__dataclass_fields__, "BF16")),
    "f16-and-f32": QuantMix(
        embedding="F16", output="F32", q_a="F16", kv_a="F16", k_b="F16", v_b="F32", router="F16"
    ),
    "iq4": QuantMix(
        gate="IQ4_XS", up="IQ4_XS", down="IQ4_NL", dense_in="IQ4_NL", v_b="IQ4_XS", shared="IQ4_XS"
    ),
    "small": QuantMix(
        gate="Q2_K", up="Q2_K", down="Q3_K", q_b="Q3_K", k_b="Q4_0", v_b="Q2_K", dense_down="Q5_0"
    ),
    "public-5.1": QuantMix(gate="Q5_K", up="Q5_K", down="Q6_K", embedding="Q8_0", output="Q8_0", v_b="Q8_0"),
    "quantised-router": QuantMix(router="Q8_0", indexer_proj="Q4_K", indexer="Q5_K"),
}


@pytest.mark.parametrize(
    "spec",
    [
        SMALL,
        replace(SMALL, mtp=True, splits=4, metadata_only_first=True),
        replace(SMALL, layout="split2d", splits=2),
        replace(SMALL, layout="split2d", mtp=True),
        replace(SMALL, layout="kv_b", splits=4),
        replace(SMALL, layout="kv_b", mtp=True, splits=2, metadata_only_first=True),
        *[replace(SMALL, quants=mix, name=name) for name, mix in (MIXES | FILES).items()],
        replace(SMALL, layers=4, shared_layers=(2,), name="shared"),
        replace(
            SMALL,
            layers=4,
            shared_layers=(2,),
            repeat_indexer=True,
            write_indexer_types=True,
            name="repeated",
        ),
    ],
    ids=lambda spec: f"{spec.name}-{spec.layout}-{spec.splits}{'-mtp' * spec.mtp}",
)
def test_planned_tensors_are_the_reference(spec: TinySpec, tmp_path: Path) -> None:
    """Every planned tensor has the reference's bytes, and the plan covers it, in llama-quantize's files too."""
    written = write_tiny(tmp_path, spec)
    model = open_model(written.paths[-1])
    plan = plan_load(model)
    expected = dict(written.reference)

    assert spec.splits + spec.metadata_only_first == len(model.files)
    with TensorReader(model) as reader:
        for planned in plan.tensors:
            values = read_float(reader, planned, plan.hyperparameters).numpy()
            assert planned.shape == values.shape
            for target, value in zip(
                planned.targets, values if planned.is_experts else [values], strict=True
            ):
                assert np.array_equal(expected.pop(target).view(np.int32), value.view(np.int32)), target
    assert expected == {}
