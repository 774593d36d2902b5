"""Every kind of broken model ends `inspect` with exit code 4 and one sentence that names what is wrong."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGUFValueType as Type

from glm5_vllm.gguf.__main__ import main
from glm5_vllm.gguf.file.quant_types import BY_NAME
from tests.support.raw_gguf import Array, RawGGUF, RawTensor
from tests.support.tiny_gguf import TinyModel, write_tiny
from tests.support.tiny_spec import QuantMix, TinySpec

AGAIN = "Fetch the file again"
CONVERT = "Convert the model with a current llama.cpp"
ANOTHER = "Choose another quantisation: Q2_K to Q6_K, IQ1_S to IQ4_XS, Q4_0 to Q8_0, F16 and BF16 files load"
BY_KEY = f"{AGAIN}, or convert it with a current llama.cpp"
SET_AGAIN = "Fetch the set again"
LAYOUT = "Another tool laid this file out: use one that a current llama.cpp converted"
SUPPORTED = (
    "Q4_K, Q5_K, Q6_K, Q8_0, Q3_K, Q2_K, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_XS, IQ4_NL, IQ3_S, IQ3_XXS, IQ2_S, IQ2_XS, IQ2_XXS, "
    "IQ1_M, IQ1_S, F16, BF16, F32"
)
UNSCALED = "1 or no such key, for GLM-5 scales no positions"
TYPES = "glm-dsa.attention.indexer.types"


def refusal(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What `inspect` says of the model at `path`, after checking that its two forms agree on one line."""
    assert main(["inspect", str(path)]) == 4
    sentence = capsys.readouterr().err.strip()
    assert main(["inspect", str(path), "--json"]) == 4
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert (report["schema"], report["error"], err.strip()) == (1, sentence, sentence)
    assert len(sentence.splitlines()) == 1
    return sentence


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (lambda whole: b"", f"m.gguf: file size: 0 bytes; expected a GGUF file. {AGAIN}"),
        (lambda whole: b"GG", f"m.gguf: magic bytes: b'GG'; expected b'GGUF'. {AGAIN}"),
        (lambda whole: b"<html>404</html>", f"m.gguf: magic bytes: b'<htm'; expected b'GGUF'. {AGAIN}"),
        (
            lambda whole: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 402000000000\n",
            "m.gguf is a Git LFS pointer: 74 bytes of text; expected the model file itself. "
            "Fetch it with 'git lfs pull' or from the source's download address",
        ),
        (
            lambda whole: whole[:20],
            "m.gguf: the header is truncated: the number of metadata keys ends at byte 24; "
            f"expected it within the file's 20 bytes. {AGAIN}",
        ),
        (
            lambda whole: whole[:3000],
            "m.gguf: the header is truncated: metadata key tokenizer.ggml.tokens ends at byte 4170; "
            f"expected it within the file's 3000 bytes. {AGAIN}",
        ),
        (
            lambda whole: whole[:9000],
            "m.gguf: the header is truncated: a tensor name ends at byte 9021; "
            f"expected it within the file's 9000 bytes. {AGAIN}",
        ),
        (
            lambda whole: whole[:-1],
            f"m.gguf: the file is truncated: tensor output.weight ends at byte 4957984; "
            f"expected it within the file's 4957983 bytes. {AGAIN}",
        ),
        (
            lambda whole: whole.replace(b"general.name", b"\xff" * 12, 1),
            "m.gguf: a metadata key: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte; "
            f"expected UTF-8 text. {AGAIN}",
        ),
    ],
    ids=["empty", "two-bytes", "error-page", "lfs", "preamble", "metadata", "index", "data", "not-utf8"],
)
def test_content(
    content: Callable[[bytes], bytes],
    expected: str,
    tiny: TinyModel,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Content that is no whole GGUF file is refused: empty, foreign, a pointer, or cut anywhere."""
    path = tmp_path / "m.gguf"
    path.write_bytes(content(tiny.path.read_bytes()))

    assert expected == refusal(path, capsys)


def reshape(raw: RawGGUF) -> None:
    tensor = raw.tensor("blk.0.attn_output.weight")
    tensor.shape = (tensor.shape[0] // 2, tensor.shape[1] * 2)


def retype(name: str, type_id: int, elements: int, block: tuple[int, int]) -> Callable[[RawGGUF], None]:
    def change(raw: RawGGUF) -> None:
        tensor = raw.tensor(name)
        tensor.type_id, tensor.data = type_id, bytes(elements // block[0] * block[1])

    return change


def add(name: str, *shape: int) -> Callable[[RawGGUF], None]:
    def change(raw: RawGGUF) -> None:
        elements = 1
        for size in shape:
            elements *= size
        raw.tensors.append(RawTensor(name, shape, 0, bytes(4 * elements)))

    return change


def rename(old: str, new: str) -> Callable[[RawGGUF], None]:
    return lambda raw: setattr(raw.tensor(old), "name", new)


def fuse_wrongly(raw: RawGGUF) -> None:
    for name in ("gate", "up"):
        raw.drop(f"blk.1.ffn_{name}_exps.weight")
    add("blk.1.ffn_gate_up_exps.weight", 2, 1024, 256)(raw)


def put(key: str, kind: Type, value: object) -> Callable[[RawGGUF], None]:
    return lambda raw: raw.metadata.update({key: (kind, value)})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda raw: setattr(raw, "version", 1), f"GGUF version: 1; expected 2 or 3. {CONVERT}"),
        (lambda raw: setattr(raw, "version", 4), f"GGUF version: 4; expected 2 or 3. {CONVERT}"),
        (
            lambda raw: setattr(raw, "version", 3 << 24),
            f"byte order: big endian; expected little endian. {CONVERT}",
        ),
        (
            lambda raw: setattr(raw, "key_count", 1 << 40),
            f"number of metadata keys: 1099511627776; expected at most 4096. {AGAIN}",
        ),
        (
            lambda raw: setattr(raw, "tensor_count", 1 << 40),
            f"number of tensors: 1099511627776; expected at most 65536. {AGAIN}",
        ),
        (put("general.alignment", Type.UINT32, 24), f"general.alignment: 24; expected a power of two. {AGAIN}"),
        (
            lambda raw: setattr(raw.tensor("output.weight"), "type_id", 99),
            f"type id of tensor output.weight: 99; expected a ggml type. {ANOTHER}, or update this software if the type "
            "is new",
        ),
        (
            lambda raw: setattr(raw.tensor("output.weight"), "shape", (1,) * 5),
            f"dimensions of tensor output.weight: 5; expected 1 to 4. {AGAIN}",
        ),
        (
            lambda raw: setattr(raw.tensor("output.weight"), "shape", (0, 256)),
            f"shape of tensor output.weight: [0, 256]; expected positive sizes. {AGAIN}",
        ),
        (
            lambda raw: setattr(raw.tensor("output.weight"), "shape", (320, 255)),
            f"row length of tensor output.weight: 255; expected a multiple of 256 for Q6_K. {AGAIN}",
        ),
        (
            lambda raw: setattr(raw.tensor("output.weight"), "offset", 7),
            f"offset of tensor output.weight: 7; expected a multiple of the alignment 32. {AGAIN}",
        ),
        (
            lambda raw: setattr(raw.tensor("output.weight"), "offset", 1 << 50),
            "the file is truncated: tensor output.weight ends at byte 1125899906921184; "
            f"expected it within the file's 4957984 bytes. {AGAIN}",
        ),
        (
            lambda raw: setattr(raw.tensor("blk.0.attn_q_a.weight"), "offset", 0),
            f"tensor blk.0.attn_q_a.weight: overlaps token_embd.weight; expected disjoint tensors. {AGAIN}",
        ),
        (
            lambda raw: raw.tensors.append(copy.copy(raw.tensor("output_norm.weight"))),
            f"tensor output_norm.weight: twice in the index; expected each tensor once. {AGAIN}",
        ),
    ],
    ids=[
        "version-1", "version-4", "big-endian", "many-keys", "many-tensors", "alignment", "unknown-type", "dimensions",
        "empty-tensor", "part-of-a-block", "unaligned", "outside", "overlap", "doubled-tensor",
    ],
)  # fmt: skip
def test_header(
    change: Callable[[RawGGUF], object],
    expected: str,
    raw: RawGGUF,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A header that contradicts the format or the file is refused."""
    change(raw)

    assert f"m.gguf: {expected}" == refusal(raw.write(tmp_path / "m.gguf"), capsys)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            put("general.architecture", Type.STRING, "llama"),
            "architecture: llama; expected glm-dsa. Only GLM-5 is served",
        ),
        (
            lambda raw: raw.metadata.pop("general.architecture"),
            "architecture: missing; expected glm-dsa. Only GLM-5 is served",
        ),
        (
            lambda raw: raw.metadata.pop("glm-dsa.attention.kv_lora_rank"),
            f"metadata key glm-dsa.attention.kv_lora_rank: missing; expected it to be there. {BY_KEY}",
        ),
        (
            put("glm-dsa.embedding_length", Type.STRING, "256"),
            "metadata key glm-dsa.embedding_length: 256; expected an integer from 1 to 2147483648. " + BY_KEY,
        ),
        (
            put("glm-dsa.expert_used_count", Type.UINT32, 9),
            f"metadata key glm-dsa.expert_used_count: 9; expected an integer from 1 to 4. {BY_KEY}",
        ),
        (
            put("glm-dsa.attention.head_count_kv", Type.UINT32, 4),
            f"metadata key glm-dsa.attention.head_count_kv: 4; expected 1. {BY_KEY}",
        ),
        (
            put("glm-dsa.expert_gating_func", Type.UINT32, 1),
            f"metadata key glm-dsa.expert_gating_func: 1; expected 2. {BY_KEY}",
        ),
        (
            put("glm-dsa.rope.freq_base", Type.FLOAT32, float("inf")),
            f"metadata key glm-dsa.rope.freq_base: inf; expected a positive number. {BY_KEY}",
        ),
        (
            put("glm-dsa.expert_weights_norm", Type.UINT32, 1),
            f"metadata key glm-dsa.expert_weights_norm: 1; expected true or false. {BY_KEY}",
        ),
        (
            put("glm-dsa.rope.scaling.type", Type.STRING, "yarn"),
            "metadata key glm-dsa.rope.scaling.type: yarn; expected none, for GLM-5 scales no positions. " + BY_KEY,
        ),
        (
            put("glm-dsa.rope.scaling.factor", Type.FLOAT32, 4.0),
            f"metadata key glm-dsa.rope.scaling.factor: 4.0; expected {UNSCALED}. {BY_KEY}",
        ),
        (
            put("glm-dsa.rope.scale_linear", Type.FLOAT32, 2.0),
            f"metadata key glm-dsa.rope.scale_linear: 2.0; expected {UNSCALED}. {BY_KEY}",
        ),
        (
            put("glm-dsa.rope.scaling.attn_factor", Type.FLOAT32, 0.5),
            f"metadata key glm-dsa.rope.scaling.attn_factor: 0.5; expected {UNSCALED}. {BY_KEY}",
        ),
        (
            put(TYPES, Type.ARRAY, Array(Type.BOOL, [True])),
            f"entries of metadata key {TYPES}: 1; expected 2, one a layer. {CONVERT}",
        ),
        (
            put(TYPES, Type.ARRAY, Array(Type.STRING, ["full", "half"])),
            f"metadata key {TYPES}: half; expected full or shared, or 1 or 0. {CONVERT}",
        ),
        (
            put(TYPES, Type.ARRAY, Array(Type.BOOL, [False, True])),
            f"the indexer of layer 0: shared; expected full, for no layer before it selects. {CONVERT}",
        ),
    ],
    ids=[
        "architecture", "no-architecture", "missing-key", "wrong-type", "out-of-range", "kv-heads", "gating", "infinite",
        "not-boolean", "rope-scaling", "rope-factor", "old-rope-factor", "rope-attention",
        "few-indexer-types", "unknown-indexer-type", "first-layer-shared",
    ],
)  # fmt: skip
def test_hyperparameters(
    change: Callable[[RawGGUF], object],
    expected: str,
    raw: RawGGUF,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Another architecture, and a hyperparameter that is missing or impossible, are refused by name."""
    change(raw)

    assert f"m.gguf: {expected}" == refusal(raw.write(tmp_path / "m.gguf"), capsys)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda raw: raw.drop("blk.1.attn_q_b.weight"), "blk.1.attn_q_b.weight is missing"),
        (lambda raw: raw.drop("blk.0.attn_v_b.weight"), "blk.0.attn_v_b.weight is missing"),
        (lambda raw: raw.drop("blk.0.indexer.k_norm.bias"), "blk.0.indexer.k_norm.bias is missing"),
        (lambda raw: raw.drop("blk.1.exp_probs_b.bias"), "blk.1.exp_probs_b.bias is missing"),
        (lambda raw: raw.drop("output.weight"), "output.weight is missing"),
        (add("rope_freqs.weight", 32), "rope_freqs.weight is unknown; no parameter of the model takes it"),
        (
            add("blk.2.attn_sinks.weight", 32),
            "blk.2.attn_sinks.weight is unknown; no parameter of the model takes it",
        ),
        (add("blk.3.attn_norm.weight", 256), "blk.3.attn_norm.weight has no place in block 3 of 3"),
        (add("blk.1.ffn_gate.weight", 512, 256), "blk.1.ffn_gate.weight has no place in block 1 of 3"),
        (add("blk.1.nextn.enorm.weight", 256), "blk.1.nextn.enorm.weight has no place in block 1 of 3"),
        (
            add("blk.1.attn_kv_b.weight", 2 * 448, 512),
            "blk.1.attn_k_b.weight has no place in block 1 of 3; "
            "tensor blk.1.attn_v_b.weight has no place in block 1 of 3",
        ),
        (
            rename("blk.1.ffn_gate_exps.weight", "blk.1.experts.gate.weight"),
            "blk.1.experts.gate.weight is unknown; no parameter of the model takes it; "
            "tensor blk.1.ffn_gate_exps.weight is missing",
        ),
        (
            add("blk.1.ffn_gate_up_exps.weight", 4, 512, 256),
            "blk.1.ffn_gate_up_exps.weight has shape [4, 512, 256]; expected [4, 512, 256], and no separate gate and up "
            "beside it",
        ),
        (
            fuse_wrongly,
            "blk.1.ffn_gate_up_exps.weight has shape [2, 1024, 256]; expected [4, 512, 256], and no separate gate and up "
            "beside it; tensor blk.1.ffn_gate_exps.weight is missing; tensor blk.1.ffn_up_exps.weight is missing",
        ),
    ],
    ids=[
        "missing", "half-of-kv_b", "part-of-indexer", "router-bias",
        "output", "extra", "extra-in-mtp", "extra-block", "dense-in-moe", "mtp-in-main", "both-kv_b",
        "renamed", "fused-and-separate", "fused-wrongly",
    ],
)  # fmt: skip
def test_tensors(
    change: Callable[[RawGGUF], object],
    expected: str,
    raw: RawGGUF,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A tensor too few and one too many are refused by name; the unknown one first, for it is often the missing one."""
    change(raw)

    assert f"m.gguf: tensor {expected}. {LAYOUT}" == refusal(raw.write(tmp_path / "m.gguf"), capsys)


def test_shape(raw: RawGGUF, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tensor of the wrong shape is refused by name."""
    reshape(raw)

    assert refusal(raw.write(tmp_path / "m.gguf"), capsys) == (
        f"m.gguf: tensor blk.0.attn_output.weight has shape [128, 1024]; expected [256, 512]. {BY_KEY}"
    )


def test_many_faults(raw: RawGGUF, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence names four kinds of faults and counts the rest; the list names every tensor, up to a limit."""
    reshape(raw)
    for number in range(300):
        add(f"blk.{number % 3}.other_{number // 3}.weight", 32)(raw)
    path = raw.write(tmp_path / "m.gguf")
    sentence = refusal(path, capsys)
    assert main(["inspect", str(path), "--json"]) == 4
    report = json.loads(capsys.readouterr().out)
    assert main(["inspect", str(path)]) == 4
    lines = capsys.readouterr().out.splitlines()

    assert sentence.startswith(
        "m.gguf: tensor blk.0.other_0.weight is unknown; no parameter of the model takes it (and 2 more); "
    )
    assert "; 97 more kinds of faults. " in sentence
    assert (len(report["refused"]), report["refused_total"]) == (200, 301)
    assert sum(line.startswith("  refuses") for line in lines) == 21
    assert lines[-1] == "  refuses       281 more"


@pytest.mark.parametrize(
    ("tensor", "quant", "elements", "expected"),
    [
        *[
            ("blk.1.ffn_down_exps.weight", name, 4 * 256 * 256, SUPPORTED)
            for name in BY_NAME
            if name not in SUPPORTED.split(", ")
        ],
        ("blk.1.attn_k_b.weight", "MXFP4", 2 * 512 * 192, SUPPORTED),
        ("blk.1.attn_norm.weight", "Q8_0", 256, "F16, BF16, F32"),
    ],
)
def test_types(
    tensor: str,
    quant: str,
    elements: int,
    expected: str,
    raw: RawGGUF,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A type that no kernel takes there is refused with those that are, and with the files that have no others."""
    of = BY_NAME[quant]
    retype(tensor, of.type_id, elements, (of.block_elements, of.block_bytes))(raw)

    assert refusal(raw.write(tmp_path / "m.gguf"), capsys) == (
        f"m.gguf: tensor {tensor} has type {quant}; expected one of {expected}. {ANOTHER}"
    )


def test_gate_and_up_of_two_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Gate and up experts of one layer must share their type."""
    model = write_tiny(tmp_path, TinySpec(layers=2, quants=QuantMix(gate="Q4_K", up="Q5_K")))

    assert refusal(model.path, capsys) == (
        "tiny-glm-dsa.gguf: tensor blk.1.ffn_up_exps.weight has type Q5_K; expected Q4_K as blk.1.ffn_gate_exps.weight, "
        f"for the fused expert kernel keeps one type for both. {ANOTHER}"
    )


def test_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path that leads nowhere is named."""
    path = tmp_path / "none.gguf"

    expected = f"cannot read {path}: No such file or directory. Check the path and its permissions"
    assert expected == refusal(path, capsys)


@pytest.mark.parametrize(
    ("names", "found"),
    [((), "no .gguf file"), (("a.gguf", "b-00001-of-00002.gguf"), "a.gguf, b-00001-of-00002.gguf")],
    ids=["empty", "two-models"],
)
def test_folder(
    names: tuple[str, ...], found: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder must hold exactly one model."""
    for name in names:
        (tmp_path / name).touch()

    expected = (
        f"folder {tmp_path} must hold one model: {found}; expected exactly one. Name the model's file instead"
    )
    assert expected == refusal(tmp_path, capsys)


def second(of: TinySpec) -> Callable[[list[Path], Path], None]:
    """Put the second split of another model in the place of this one's."""

    def change(paths: list[Path], folder: Path) -> None:
        paths[1].unlink()
        paths[1].hardlink_to(write_tiny(folder / "other", of).paths[1])

    return change


def double(paths: list[Path], folder: Path) -> None:
    paths[1].unlink()
    paths[1].hardlink_to(paths[0])


def edit_second(change: Callable[[RawGGUF, RawGGUF], object]) -> Callable[[list[Path], Path], None]:
    def edit(paths: list[Path], folder: Path) -> None:
        first, second = RawGGUF.read(paths[0]), RawGGUF.read(paths[1])
        change(first, second)
        paths[1].unlink()
        second.write(paths[1])

    return edit


NAMES = [f"tiny-glm-dsa-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
FOREIGN = f"{NAMES[1]} is a split of another model"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda paths, folder: paths[1].unlink(),
            f"1 of 3 splits are missing: {NAMES[1]}; expected all of them in FOLDER. Fetch the missing files",
        ),
        (
            lambda paths, folder: (paths[1].unlink(), paths[2].unlink()),
            f"2 of 3 splits are missing: {NAMES[1]}, {NAMES[2]}; expected all of them in FOLDER. "
            "Fetch the missing files",
        ),
        (
            double,
            f"{NAMES[1]} is not the split its name says: split.no: 0; expected 1. "
            "One split lies there twice or under a wrong name: fetch it again",
        ),
        (
            second(TinySpec(layers=3, splits=3)),
            f"{FOREIGN}: split.tensors.count: 67; expected 44 as in the first split. {SET_AGAIN}",
        ),
        (
            second(TinySpec(layers=2, splits=2)),
            f"{FOREIGN}: split.count: 2; expected 3 as in the first split. {SET_AGAIN}",
        ),
        (
            second(TinySpec(layers=2, splits=3, heads=4, experts=4, index_heads=4)),
            f"{NAMES[0]}: tensor blk.1.attn_q_b.weight has shape [1024, 256]; expected [512, 256]; "
            "tensor blk.1.attn_k_b.weight has shape [4, 512, 192]; expected [2, 512, 192] or [1024, 192]; "
            "tensor blk.1.attn_v_b.weight has shape [4, 256, 512]; expected [2, 256, 512] or [512, 512]; "
            f"tensor blk.1.attn_output.weight has shape [256, 1024]; expected [256, 512]. {BY_KEY}",
        ),
        (
            edit_second(lambda first, second: second.metadata.update({"general.name": (Type.STRING, "GLM-4.5")})),
            f"{FOREIGN}: general.name: GLM-4.5; expected tiny-glm-dsa as in the first split. {SET_AGAIN}",
        ),
        (
            edit_second(lambda first, second: second.metadata.pop("split.count")),
            f"{FOREIGN}: split.count: missing; expected 3 as in the first split. {SET_AGAIN}",
        ),
        (
            edit_second(lambda first, second: second.tensors.pop()),
            f"{NAMES[0]}: tensors in its 3 splits: 43; expected split.tensors.count 44. "
            "A split belongs to another model: fetch the set again",
        ),
        (
            edit_second(lambda first, second: second.tensors.__setitem__(0, first.tensors[0])),
            f"tensor token_embd.weight lies in two splits: {NAMES[0]} and {NAMES[1]}; expected each tensor once. "
            + SET_AGAIN,
        ),
    ],
    ids=[
        "missing", "two-missing", "doubled", "other-layers", "other-split-count", "other-heads", "other-name",
        "no-split-count", "tensor-lost", "tensor-doubled",
    ],
)  # fmt: skip
def test_splits(
    change: Callable[[list[Path], Path], object],
    expected: str,
    split_copy: list[Path],
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A split that is missing, doubled or of another model is refused by name."""
    first = split_copy[0]
    change(split_copy, tmp_path_factory.mktemp("other"))

    assert expected.replace("FOLDER", str(first.parent)) == refusal(first, capsys)


def test_renamed_split(split_copy: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    """A split whose name does not tell its fellows is not taken for a whole model."""
    path = split_copy[0].rename(split_copy[0].with_name("model.gguf"))

    assert refusal(path, capsys) == (
        "model.gguf is one of several splits by its metadata: split.count 3; expected a complete file. "
        "Give the files their original names, NAME-00001-of-0000N.gguf"
    )


def test_split_number_beyond_count(split_copy: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    """A split number that its own name rules out is refused."""
    path = split_copy[0].rename(split_copy[0].with_name("a-00004-of-00003.gguf"))

    expected = (
        "split number in the file name: a-00004-of-00003.gguf; expected 1 to 3. Restore the original name"
    )
    assert expected == refusal(path, capsys)
