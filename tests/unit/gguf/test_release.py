"""Which GLM-5 a file is: published headers and what was changed in them, told or refused with both statements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFValueType as Type

from glm5_vllm.gguf.__main__ import main
from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.file.splits import open_model
from glm5_vllm.gguf.huggingface.config import hf_config
from glm5_vllm.gguf.plan.planned import LoadPlan
from glm5_vllm.gguf.plan.planner import examine
from tests.support.raw_gguf import Array
from tests.support.real_headers import HEADERS, LAYERS, PUBLISHED, RUN_INDEXER, write_header

UD_Q4 = "GLM-5.3 UD-Q4_K_XL"
SHARING = tuple(layer for layer in range(LAYERS) if layer not in RUN_INDEXER)
NAMES = ("general.name", "general.version", "general.basename")
UNNAMED: dict[str, object] = dict.fromkeys(NAMES)
# GLM-5.1 as its load log has it: no name, its own rope base and context
OF_5_1: dict[str, object] = UNNAMED | {"glm-dsa.rope.freq_base": 1e6, "glm-dsa.context_length": 202752}
OF_5_2: dict[str, object] = {"general.name": "Glm-5.2", "general.version": "5.2"}
FREQUENCY = "glm-dsa.attention.indexer.top_k_frequency"
OFFSET = "glm-dsa.attention.indexer.skip_top_k_offset"
TYPES = "glm-dsa.attention.indexer.types"
CONTEXT = "glm-dsa.context_length"
ROPE = "glm-dsa.rope.freq_base"
LATER, EARLIER = "GLM-5.2 or later", "GLM-5 or GLM-5.1"
COPIES = "indexer weights that repeat the layer before: 57 of 78 layers share"


def plan_of(
    folder: Path, changes: dict[str, object] | None = None, setting: str | None = None, **how: Any
) -> LoadPlan:
    path = write_header(folder, UD_Q4, changes or {}, single_file=True, **how)
    return examine(open_model(path), setting)


def indexers(plan: LoadPlan) -> tuple[int, ...]:
    return tuple(i for i, kind in enumerate(plan.indexer_types) if kind == "full")


@pytest.mark.parametrize("published", PUBLISHED)
def test_published_files(published: str, tmp_path: Path) -> None:
    """A published file is planned whole: its release, its 21 indexers, rope base and context."""
    plan = examine(open_model(write_header(tmp_path, published)))
    config = hf_config(plan.hyperparameters, plan.release, (154820,))

    assert (plan.release.name, plan.release.is_later, indexers(plan)) == ("GLM-5.3", True, RUN_INDEXER)
    assert plan.refusals == ()
    assert len(plan.model.tensors) == 1809
    assert [len(file.tensors) for file in plan.model.files] == [
        split["tensors"] for split in HEADERS[published]["splits"]
    ]
    assert (plan.hyperparameters.rope_theta, plan.hyperparameters.context_length) == (8e6, 1 << 20)
    assert config["index_share_for_mtp_iteration"]


CASES: dict[str, tuple[dict[str, object], dict[str, Any], str, bool]] = {
    "5.2": (OF_5_2, {}, "GLM-5.2", True),
    "5.1": (OF_5_1, {}, EARLIER, False),
    "5": (OF_5_1 | {"general.name": "GLM-5"}, {}, "GLM-5", False),
    "5.1-named": (OF_5_1 | {"general.name": "GLM 5.1"}, {}, "GLM-5.1", False),
    "5.3-lowered-context": ({CONTEXT: 202752}, {}, "GLM-5.3", True),
    "5.2-lowered-by-one": (OF_5_2 | {CONTEXT: 1048575}, {}, "GLM-5.2", True),
    "unnamed-lowered": (UNNAMED | {CONTEXT: 4096}, {}, LATER, True),
    "other-name": ({"general.name": "my model", "general.version": "2"}, {}, LATER, True),
    "copies": ({}, {"copied_layers": SHARING}, "GLM-5.3", True),
    "copies-alone": (UNNAMED | {ROPE: 5e5, CONTEXT: 4096}, {"copied_layers": SHARING}, LATER, True),
    "5.1-own-weights": (OF_5_1, {"copied_layers": ()}, EARLIER, False),
    "frequency": ({FREQUENCY: 4, OFFSET: 3}, {}, "GLM-5.3", True),
    "frequency-1": (OF_5_1 | {FREQUENCY: 1}, {}, EARLIER, False),
    "types": ({TYPES: Array(Type.BOOL, [i in RUN_INDEXER for i in range(78)])}, {}, "GLM-5.3", True),
    "left-out": (
        {},
        {
            "drop": [
                f"blk.{layer}.indexer.{name}"
                for layer in SHARING
                for name in (
                    "attn_k.weight",
                    "attn_q_b.weight",
                    "k_norm.weight",
                    "k_norm.bias",
                    "proj.weight",
                )
            ]
        },
        "GLM-5.3",
        True,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_agrees(case: str, tmp_path: Path) -> None:
    """Statements that agree decide, whichever of them a file has; a lowered context says nothing."""
    changes, how, name, is_later = CASES[case]
    plan = plan_of(tmp_path, changes, **how)

    assert (plan.release.name, plan.release.is_later) == (name, is_later)
    assert indexers(plan) == (RUN_INDEXER if is_later else tuple(range(LAYERS)))
    assert plan.refusals == ()


@pytest.mark.parametrize(
    ("changes", "copied", "one", "other"),
    [
        (OF_5_1 | {CONTEXT: 1 << 20}, None, f"rope.freq_base 1000000: {EARLIER}", f"context_length 1048576: {LATER}"),
        ({ROPE: 1e6}, None, f"rope.freq_base 1000000: {EARLIER}", f"general.version 5.3: {LATER}"),
        ({"general.name": "GLM-5.1"}, None, f"rope.freq_base 8000000: {LATER}", f"general.name GLM-5.1: {EARLIER}"),
        ({FREQUENCY: 1}, None, "top_k_frequency: 0 of 78 layers share", f"rope.freq_base 8000000: {LATER}"),
        ({FREQUENCY: 2, OFFSET: 3}, SHARING, "top_k_frequency: 38 of 78 layers share", COPIES),
        (OF_5_1, SHARING, COPIES, f"rope.freq_base 1000000: {EARLIER}"),
        ({}, (), f"indexer weights of every layer differ: {EARLIER}", f"rope.freq_base 8000000: {LATER}"),
    ],
    ids=["raised-context", "rope", "name", "frequency", "frequency-against-copies", "copies", "own-weights"],
)  # fmt: skip
def test_what_disagrees(
    changes: dict[str, object], copied: tuple[int, ...] | None, one: str, other: str, tmp_path: Path
) -> None:
    """Two statements that disagree are both named, and a setting decides."""
    with pytest.raises(GGUFError, match="contradicts itself on which GLM-5 it is") as refused:
        plan_of(tmp_path, changes, copied_layers=copied)

    assert f"{one}, but " in str(refused.value)
    assert other in str(refused.value)
    path = next(tmp_path.glob("*.gguf"))
    earlier, later = (examine(open_model(path), setting) for setting in ("5.1", "5.3"))
    assert (earlier.release.name, indexers(earlier)) == ("GLM-5.1", tuple(range(LAYERS)))
    assert (later.release.name, later.release.is_later) == ("GLM-5.3", True)
    assert len(indexers(later)) < LAYERS


def test_the_setting_of_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's processes take the setting from the environment; one that is no release is refused."""
    path = write_header(tmp_path, UD_Q4, OF_5_1 | {CONTEXT: 1 << 20}, single_file=True)
    monkeypatch.setenv("GLM5_MODEL_RELEASE", "5.1")
    assert examine(open_model(path)).release.name == "GLM-5.1"

    monkeypatch.setenv("GLM5_MODEL_RELEASE", "6")
    with pytest.raises(GGUFError, match=r"^GLM5_MODEL_RELEASE: 6; expected one of 5, 5\.1, 5\.2, 5\.3"):
        examine(open_model(path))


@pytest.mark.parametrize(("key", "value"), [(FREQUENCY, 0), (FREQUENCY, 79), (OFFSET, 79), (FREQUENCY, "4")])
def test_impossible_schedule(key: str, value: object, tmp_path: Path) -> None:
    """A schedule that no layer can follow is refused by its key."""
    with pytest.raises(GGUFError, match=f"metadata key {key}: {value}; expected an integer from"):
        plan_of(tmp_path, {FREQUENCY: 4, key: value})


def test_inspect_tells_the_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """People read the release and every statement that it rests on."""
    path = write_header(tmp_path, UD_Q4, single_file=True, copied_layers=SHARING)
    assert main(["inspect", str(path)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[:7] == [
        "Glm-5.3 (glm-dsa)",
        "  release       GLM-5.3",
        f"                  {COPIES}",
        f"                  rope.freq_base 8000000: {LATER}",
        f"                  general.version 5.3: {LATER}",
        f"                  general.name Glm-5.3: {LATER}",
        f"                  context_length 1048576: {LATER}",
    ]
    assert main(["inspect", str(path), "--release", "5.2"]) == 0
    assert "  release       GLM-5.2\n                  the setting says 5.2\n" in capsys.readouterr().out


def test_flash_is_refused_by_its_own_name(tmp_path: Path) -> None:
    """GLM-5.3-Flash is another model, and is named."""
    with pytest.raises(GGUFError) as refused:
        plan_of(tmp_path, {"general.architecture": "glm5next"})

    assert str(refused.value).endswith(
        "architecture: glm5next; expected glm-dsa. This is GLM-5.3-Flash, another model. "
        "Only GLM-5, 5.1, 5.2 and 5.3 are served"
    )
