"""Preflight: every rule can fail, and says what it found and what to do."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from glm5_service.contracts.manifest import FileRecord, Manifest, ModelSummary
from glm5_service.contracts.model_report import Footprint, GgufFacts, Placed, Release, Tokenizer
from glm5_service.engine import arguments
from glm5_service.errors import FitError, SettingsError
from glm5_service.host import hardware
from glm5_service.host.hardware import Cpu, Gpu, Host
from glm5_service.model.inspection import ModelFacts
from glm5_service.preflight import allreduce, fit
from glm5_service.preflight.check import check
from glm5_service.preflight.findings import Finding
from glm5_service.preflight.rules import RULES, find
from glm5_service.preflight.subject import Subject
from glm5_service.settings import Given, Settings, load
from tests.support.glm5_command import PATIENCE_SECONDS, glm5
from tests.support.records import hyperparameters

GIB = 1024**3
GPU = Gpu("NVIDIA RTX PRO 6000 Blackwell", 96 * GIB, 96 * GIB, (12, 0), False)
HOST = Host((GPU,) * 8, "595.1", (13, 2), True, 0, 0, 64 * GIB, 500 * GIB, 65536, 2**63 - 1)
# GLM-5 as a 402 GiB Q4_K mix
O_PROJ = 78 * 64 * 256 * 6144
GLM5 = GgufFacts(
    schema_version=1,
    name="GLM-5",
    types={},
    missing_mtp=[],
    set_aside={},
    refused=[],
    refused_total=0,
    release=Release(name="GLM-5", evidence=[]),
    tokenizer=Tokenizer(source="folder", tokens=0, merges=0, chat_templates=[], error=None),
    error=None,
    path=Path("/models/glm.gguf"),
    files=[],
    architecture="glm-dsa",
    tensors=1,
    bytes=1,
    context_length=202752,
    load=Placed(tensors=1782, bytes=402 * GIB),
    weights=Footprint(
        packed_sharded=398 * GIB,
        # q_a, kv_a and the indexer's q_b in Q8_0
        packed_replicated=78 * (2624 * 6144 + 4096 * 2048) * 17 // 16,
        # kv_b_proj
        floats_sharded=78 * 64 * 448 * 512,
        # the indexer's small projections and the router
        floats_replicated=78 * 160 * 6144 + 75 * 256 * 6144,
        # q_b in Q4_K, and the keys' half of kv_b_proj
        packed_queries=78 * 64 * 256 * 2048 * 9 // 16,
        floats_absorbed=78 * 64 * 192 * 512,
    ),
    draft_weights=Footprint(
        packed_sharded=5 * GIB, packed_queries=64 * 256 * 2048 * 9 // 16, floats_absorbed=64 * 192 * 512
    ),
    speed_weights=Footprint(
        # o_proj in Q8_0 became float, and so did what is replicated
        packed_sharded=398 * GIB - O_PROJ * 17 // 16,
        floats_sharded=78 * 64 * 448 * 512 + O_PROJ,
        floats_replicated=78 * (160 * 6144 + 2624 * 6144 + 4096 * 2048) + 75 * 256 * 6144,
        packed_queries=78 * 64 * 256 * 2048 * 9 // 16,
        floats_absorbed=78 * 64 * 192 * 512,
    ),
    speed_draft_weights=Footprint(packed_sharded=5 * GIB),
    hyperparameters=hyperparameters(),
    indexer_layers=78,
)
MTP = """--speculative-config '{"method":"mtp","num_speculative_tokens":2}'"""
VERSIONS = {"glm5-service": "0.1.0", "glm5-vllm": "0.1.0", "vllm": "0.33.0"}


def _settings(tmp_path: Path, **values: object) -> Settings:
    given = {
        "run_dir": str(tmp_path / "run"),
        "cache_dir": str(tmp_path / "cache"),
        "engine.host": "127.0.0.1",
        "engine.weights": "memory",
    }
    given |= {
        "engine.port": 18765,
        "health.port": 18766,
        "engine.tensor_parallel_size": 8,
        "engine.profile": "cuda",
    }
    given |= values
    return load({path: Given(value, "test") for path, value in given.items()}, environ={}).settings


def _subject(tmp_path: Path, host: Host = HOST, **values: object) -> Subject:
    def version(name: str) -> str:
        if name not in VERSIONS:
            raise metadata.PackageNotFoundError(name)
        return VERSIONS[name]

    model = ModelFacts(path=GLM5.path, gguf=GLM5, architecture="glm-dsa")
    return Subject(
        _settings(tmp_path, **values),
        host,
        model=model,
        profile="cuda",
        version=version,
        all_reduce=lambda ranks, backend, timeout: allreduce.Outcome(1.5, None),
    )


def _manifest(folder: Path) -> Path:
    file = folder / "glm.gguf"
    file.write_text("good")
    stat = file.stat()
    record = FileRecord(
        name="glm.gguf",
        size=4,
        sha256="0",
        source_digest=None,
        etag=None,
        mtime_ns=stat.st_mtime_ns,
        inode=stat.st_ino,
    )
    summary = ModelSummary(
        architecture="glm-dsa", name=None, tensors=1, tensor_bytes=4, context_length=1, splits=1, types={},
        first_file="glm.gguf",
    )  # fmt: skip
    manifest = Manifest(
        source="file:///x", revision="r", files=[record], gguf=summary, staged_at=datetime.now(UTC)
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    return file


def _text(finding: Finding) -> str:
    return f"{finding.found} {finding.remedy}"


@pytest.mark.parametrize(
    "rule",
    ["versions", "ports", "gpus", "driver", "memory", "shared-memory", "limits", "folders", "all-reduce"],
)
def test_a_fit_host_passes(rule: str, tmp_path: Path) -> None:
    """Eight 96 GB cards on a well-kept node raise nothing."""
    finding = find(rule, _subject(tmp_path, **{"engine.max_model_len": 131072}))
    assert (finding.outcome, finding.remedy) == ("pass", "")


@pytest.mark.parametrize(
    ("rule", "host", "values", "outcome", "words"),
    [
        ("gpus", replace(HOST, gpus=(GPU,) * 4), {}, "fail", "not enough GPUs: 4; expected 8"),
        ("gpus", replace(HOST, gpus=(GPU,) * 7 + (replace(GPU, name="H200"),)), {}, "fail", "GPUs differ: H200 12.0"),
        ("gpus", replace(HOST, gpus=(replace(GPU, capability=(7, 5)),) * 8), {}, "fail", "GPU is too old"),
        ("gpus", replace(HOST, gpus=(), nvml_error="GPU 3: GPU is lost"), {}, "fail", "GPUs: 0 (GPU 3: GPU is lost)"),
        ("driver", replace(HOST, cuda=None, nvml_error="Driver Not Loaded"), {}, "fail", "no driver (Driver Not Loaded)"),
        ("driver", replace(HOST, cuda=(12, 8)), {}, "fail", "driver 595.1 for CUDA 12.8; expected one for CUDA 13.0"),
        ("driver", replace(HOST, cuda=None, driver=None), {}, "fail", "no driver"),
        ("memory", HOST, {"engine.tensor_parallel_size": 4}, "fail", "the model does not fit on a GPU"),
        ("memory", HOST, {"engine.max_model_len": 900000}, "fail", "a context of 900000 tokens does not fit"),
        ("memory", HOST, {"engine.max_model_len": 350000}, "warn", "a context of 350000 tokens does not fit"),
        (
            "memory", HOST, {"engine.max_model_len": 900000, "engine.extra_args": "--max-model-len auto"}, "warn",
            "a context of 900000 tokens does not fit",
        ),
        ("shared-memory", replace(HOST, shm_bytes=64 * 1024**2), {}, "fail", "/dev/shm is too small: 64.0 MiB"),
        (
            "shared-memory", replace(HOST, shm_bytes=64 * 1024**2), {"engine.tensor_parallel_size": 1}, "warn",
            "/dev/shm has 64.0 MiB",
        ),
        ("limits", replace(HOST, open_files=1024), {}, "fail", "too few open files allowed: 1024"),
        ("limits", replace(HOST, locked_bytes=65536), {}, "warn", "locked memory is limited to 65536 bytes"),
        ("folders", HOST, {"cache_dir": "/proc/cache"}, "fail", "cannot write to cache_dir: /proc/cache"),
        ("all-reduce", replace(HOST, iommu_groups=40), {}, "warn", "PCIe, peer access True, 40 IOMMU groups"),
        ("all-reduce", replace(HOST, acs_bridges=3), {}, "warn", "0 IOMMU groups, ACS on 3 bridges"),
        ("ports", HOST, {"engine.host": "203.0.113.9"}, "fail", "cannot listen: 203.0.113.9:18765"),
    ],
)  # fmt: skip
def test_unfit_hosts_are_named(
    tmp_path: Path, rule: str, host: Host, values: dict[str, object], outcome: str, words: str
) -> None:
    """Each rule finds what it looks for and says what to do about it."""
    finding = find(rule, _subject(tmp_path, host, **values))
    assert (finding.outcome, words in _text(finding)) == (outcome, True), finding
    assert finding.exit_code == {"warn": 0, "fail": 2 if rule == "ports" else 5}[outcome]


def test_a_hanging_all_reduce_names_the_pcie_facts(tmp_path: Path) -> None:
    """The failure carries what makes transfers hang, and both ways out."""
    subject = _subject(tmp_path, replace(HOST, iommu_groups=40))
    subject.all_reduce = lambda ranks, backend, timeout: allreduce.Outcome(
        60.0, "ranks 0, 1 did not end in 60 s", is_hang=True
    )
    finding = find("all-reduce", subject)
    assert finding.outcome == "fail"
    for word in ("40 IOMMU groups", "ranks 0, 1 did not end in 60 s", "iommu=off", "NCCL_P2P_DISABLE=1"):
        assert word in finding.found


def test_a_rank_that_dies_is_not_the_iommus_fault(tmp_path: Path) -> None:
    """A rank that says why it ended is quoted, without the remedy for transfers that hang."""
    subject = _subject(tmp_path, replace(HOST, iommu_groups=40))
    error = "rank 1 ended with 1: CUDA error: out of memory"
    subject.all_reduce = lambda ranks, backend, timeout: allreduce.Outcome(2.0, error)
    found = find("all-reduce", subject).found
    assert error in found
    assert "iommu=off" not in found


class _Broken(ModuleType):
    """pynvml with two GPUs, one of which fails when it is asked."""

    NVMLError = type("NVMLError", (Exception,), {})
    NVML_FEATURE_ENABLED = NVML_P2P_STATUS_OK = NVML_P2P_CAPS_INDEX_READ = 0

    def __init__(self, lost: int | None) -> None:
        super().__init__("pynvml")
        self.lost, self.is_open = lost, False

    def nvmlInit(self) -> None:
        if self.lost is None:
            raise self.NVMLError("Driver Not Loaded")
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        if handle == self.lost:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(total=96 * GIB, free=96 * GIB)

    def __getattr__(self, name: str) -> Callable[..., object]:
        answers: dict[str, object] = {
            "nvmlSystemGetDriverVersion": "595.1",
            "nvmlSystemGetCudaDriverVersion_v2": 13020,
            "nvmlDeviceGetCount": 2,
            "nvmlDeviceGetCudaComputeCapability": (12, 0),
            "nvmlDeviceGetName": GPU.name,
            "nvmlDeviceGetNvLinkState": 1,
            "nvmlDeviceGetP2PStatus": 0,
        }
        return lambda *arguments: answers[name]


@pytest.mark.parametrize(
    ("lost", "gpus", "driver", "cuda", "error"),
    [
        (2, (GPU, GPU), "595.1", (13, 2), None),
        (1, (), "595.1", (13, 2), "GPU 1: GPU is lost"),
        (None, (), None, None, "Driver Not Loaded"),
    ],
    ids=["both answer", "one is lost", "no driver"],
)
def test_what_nvml_does_not_answer_is_a_fact(
    monkeypatch: pytest.MonkeyPatch,
    lost: int | None,
    gpus: tuple[Gpu, ...],
    driver: str | None,
    cuda: tuple[int, int] | None,
    error: str | None,
) -> None:
    """A GPU that is lost between two questions, or a driver that is not there, is told in NVML's words, never raised."""
    nvml = _Broken(lost)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = hardware.look()
    assert (found.gpus, found.driver, found.cuda, found.nvml_error) == (gpus, driver, cuda, error)
    assert not nvml.is_open


@pytest.mark.parametrize("error", [None, "GPU 3: GPU is lost"])
def test_a_host_without_gpus_is_exit_code_5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str | None
) -> None:
    """A GGUF on the cuda profile without a GPU to hold it ends as a host that does not fit, with every rule's finding."""
    bare = replace(HOST, gpus=(), driver=None, cuda=None, nvml_error=error)
    monkeypatch.setattr(hardware, "look", lambda: bare)
    monkeypatch.setattr("glm5_service.preflight.check.Subject", lambda settings, found: replace(
        _subject(tmp_path, found), settings=settings, profile=None, model=None))  # fmt: skip
    model = Path(__file__).parents[3] / "demo_model"
    report, _ = check(_settings(tmp_path, **{"model.path": str(model)}))
    found = {finding.rule: finding for finding in report.findings}
    assert list(found) == list(RULES)
    assert report.failure == found["gpus"]
    assert (found["gpus"].exit_code, found["driver"].exit_code) == (5, 5)
    assert (error or "not enough GPUs: 0") in found["gpus"].found
    assert found["memory"].found == "not estimated without a GPU"


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [("vllm", "0.34.0", "expected 0.33.0"), ("glm5-vllm", "0.2.0", "expected one release")],
)
def test_untested_versions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: str, words: str
) -> None:
    """Another vLLM, or halves of two releases, do not start."""
    monkeypatch.setitem(VERSIONS, name, version)
    finding = find("versions", _subject(tmp_path))
    assert (finding.outcome, finding.exit_code, words in finding.found) == ("fail", 6, True)


def _touch(folder: Path, file: Path) -> None:
    file.write_text("evil")


def _break(folder: Path, file: Path) -> None:
    (folder / "manifest.json").write_text("{}")


def _remove(folder: Path, file: Path) -> None:
    (folder / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("change", "outcome", "words"),
    [
        (None, "pass", "1 files as verified at"),
        (_touch, "fail", "1 files changed since they were verified, first glm.gguf"),
        (_break, "fail", "manifest.json cannot be read"),
        (_remove, "warn", "so its files were not verified"),
    ],
)
def test_manifest(
    tmp_path: Path, change: Callable[[Path, Path], None] | None, outcome: str, words: str
) -> None:
    """A model that is not what staging verified is refused; one that was never staged is pointed out."""
    file = _manifest(tmp_path)
    if change:
        change(tmp_path, file)
    finding = find("manifest", _subject(tmp_path, **{"model.path": str(tmp_path)}))
    assert (finding.outcome, words in finding.found) == (outcome, True), finding


def test_fit_of_glm5_on_eight_96_gib_cards() -> None:
    """402 GiB over 8 cards leave room for about 330k tokens in bf16 and 535k or 595k in fp8, as estimated by hand."""
    found = {}
    for kv_dtype in ("auto", "fp8_ds_mla", "fp8"):
        need = fit.demand(
            GLM5, fit.Layout("cuda", 8, 2, kv_dtype, eager=False, max_context=131072, step_tokens=8192)
        )
        found[kv_dtype] = (need.kv_per_token, fit.fit_gpu(need, 96 * GIB, 0.92).kv_tokens)
    assert [rows for rows, _ in found.values()] == [100_152, 61_464, 55_224]
    assert [tokens for _, tokens in found.values()] == pytest.approx([330_000, 535_000, 595_000], rel=0.02)


@pytest.mark.parametrize(
    ("context", "step_tokens", "buffers"),
    [
        # 8 x 5 rows of 132 bytes a token, and 8192 tokens of 8 experts of 6144 bfloat16 values
        (131072, 8192, 692_060_160 + 805_306_368),
        (262144, 8192, 1_384_120_320 + 805_306_368),
        # 8 x 2 rows above 256 Ki tokens; the experts of 2048 tokens take less than the indexer's 512 MiB
        (1048576, 2048, 2_214_592_512 + 536_870_912),
    ],
)
def test_fit_counts_vllms_buffers(context: int, step_tokens: int, buffers: int) -> None:
    """What the indexer gathers grows with the longest context, what the experts put out with the tokens of a step."""
    need = fit.demand(
        GLM5, fit.Layout("cuda", 8, 2, "auto", eager=False, max_context=context, step_tokens=step_tokens)
    )
    assert need.total - need.weights - need.graphs - need.context == buffers


def test_fit_of_a_step_by_vllms_default(tmp_path: Path) -> None:
    """Tokens of a step are those of extra_args, else what vLLM takes on such a card."""
    found = []
    for gib, words in ((96, ""), (180, ""), (96, "--max-num-batched-tokens=32k")):
        subject = _subject(tmp_path, replace(HOST, gpus=(replace(GPU, total_bytes=gib * GIB),) * 8))
        subject.settings = _settings(tmp_path, **{"engine.extra_args": words})
        find("memory", subject)
        assert subject.fit
        found.append(subject.fit.demand.step // (8 * 6144 * 2))
    assert found == [8192, 16384, 32000]


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
@pytest.mark.parametrize("total", [80, 88, 90, 96, 141])
def test_longest_context_fits_and_no_longer_one(kv_dtype: str, total: int) -> None:
    """The context that is advised fits with the buffers it brings itself, as every shorter one; a longer one does not."""

    def fits(context: int) -> bool:
        need = fit.demand(
            GLM5, fit.Layout("cuda", 8, 2, kv_dtype, eager=False, max_context=context, step_tokens=8192)
        )
        return fit.fit_gpu(need, total * GIB, 0.92).kv_tokens >= context

    need = fit.demand(
        GLM5, fit.Layout("cuda", 8, 2, kv_dtype, eager=False, max_context=1000, step_tokens=8192)
    )
    longest = fit.fit_gpu(need, total * GIB, 0.92).longest_context
    assert all(fits(context) for context in (longest, longest // 2, min(longest, 262144)))
    assert not fits(longest + 2)


@pytest.mark.parametrize("words", ["--pipeline-parallel-size 2", "--pipeline-parallel-size=2", "-pp 2", ""])
def test_fit_over_several_nodes(tmp_path: Path, words: str) -> None:
    """800 GB fit on two nodes of eight cards, a pipeline stage each, and on one they do not."""
    subject = _subject(tmp_path, **{"engine.extra_args": words})
    weights = GLM5.weights.model_copy(update={"packed_sharded": 800 * 10**9})
    subject.model = ModelFacts(path=GLM5.path, gguf=GLM5.model_copy(update={"weights": weights}))
    finding = find("memory", subject)
    assert (finding.outcome, finding.exit_code) == (("pass", 0) if words else ("fail", 5)), finding


def test_fit_of_the_heaviest_pipeline_stage() -> None:
    """Layers do not split: of 78 over four stages one holds 20, with their weights, KV cache and indexers."""
    gguf = GLM5.model_copy(update={"indexer_layers": 21})
    whole, stage = (
        fit.demand(gguf, fit.Layout("cuda", 8, 2, "auto", eager=False, stages=count)) for count in (1, 4)
    )
    assert stage.weights == pytest.approx(whole.weights * 20 / 78, abs=1)
    assert stage.kv_per_token == 20 * 1152 + 6 * 132


@pytest.mark.parametrize(
    "words", ["--decode-context-parallel-size 8", "--decode_context_parallel_size=8", "-dcp 8"]
)
def test_context_parallelism_shares_the_cache_out(tmp_path: Path, words: str) -> None:
    """With the KV cache over eight ranks the tokens of eight fit beside the queries' rows, and a context that did not."""
    found = []
    for extra in ("", words):
        subject = _subject(tmp_path, **{"engine.max_model_len": 1048576, "engine.extra_args": extra})
        outcome = find("memory", subject).outcome
        assert subject.fit
        found.append((outcome, subject.fit))
    assert [outcome for outcome, _ in found] == ["fail", "pass"]
    alone, shared = (each.available - each.demand.total for _, each in found)
    assert alone - shared == QUERIES_OF_ALL_RANKS
    assert found[1][1].kv_tokens == shared // 100_152 * 8


# seven shares more of q_b_proj, of 8: 78 layers, 64 heads of 256, 2048 inputs in Q4_K; and what the queries of all 64
# heads are multiplied by: 78 layers of 64 x 192 x 512 bfloat16 values
QUERIES_OF_ALL_RANKS = 1_288_175_616 + 981_467_136


@pytest.mark.parametrize(
    ("ranks", "kv_ranks", "more"),
    [
        (8, 1, 0),
        (8, 8, QUERIES_OF_ALL_RANKS),
        (8, 2, 184_025_088 + 245_366_784),
        (1, 1, 0),
    ],
)
def test_ranks_that_share_a_cache_hold_the_queries_of_each_other(
    ranks: int, kv_ranks: int, more: int
) -> None:
    """About 2 GiB a rank of GLM-5 over eight; nothing where each rank has a cache of its own."""
    weights = GLM5.weights
    assert weights.rank_bytes(ranks, 2, kv_ranks) - weights.rank_bytes(ranks, 2) == more


def test_a_draft_model_holds_the_queries_of_other_ranks_too() -> None:
    """Its block is one layer more than the 78."""
    alone, shared = (
        fit.demand(
            GLM5, fit.Layout("cuda", 8, 2, "auto", eager=False, with_draft=True, kv_ranks=count)
        ).weights
        for count in (1, 8)
    )
    assert shared - alone == QUERIES_OF_ALL_RANKS * 79 // 78


def test_an_older_inspection_has_no_queries() -> None:
    """Without the finer figures the estimate is as it was."""
    assert Footprint(packed_sharded=80, floats_sharded=40).rank_bytes(8, 2, 8) == 20


def test_queries_in_float_count_by_their_type() -> None:
    """Float rows take what a value takes."""
    assert Footprint(floats_sharded=80, floats_queries=80).rank_bytes(8, 4, 2) == 80


@pytest.mark.parametrize(
    ("asked", "backend", "capability", "stored"),
    [
        ("fp8", None, (12, 0), "fp8"),
        ("fp8_e4m3", "FLASHMLA_SPARSE", (9, 0), "fp8_ds_mla"),
        ("auto", "FLASHMLA_SPARSE", (9, 0), "auto"),
        ("auto", "FLASHINFER_MLA_SPARSE_SM120", (12, 0), "fp8_ds_mla"),
        ("auto", None, (12, 0), "auto"),
        ("auto", None, (10, 0), "fp8_e4m3"),
    ],
)
def test_kv_cache_as_it_is_stored(
    asked: str, backend: str | None, capability: tuple[int, int], stored: str
) -> None:
    """vLLM's own backends pack what is asked for as fp8, and SM100's auto is fp8; the plugin's keeps what it is told."""
    assert fit.stored_kv_dtype(asked, backend, capability) == stored


@pytest.mark.parametrize("word", ["two", "0", ""])
def test_numbers_among_extra_args_are_checked(tmp_path: Path, word: str) -> None:
    """A flag that memory depends on and that has no number is refused by name, as a wrong setting."""
    finding = find("memory", _subject(tmp_path, **{"engine.extra_args": f"-pp {word}"}))
    said = (
        f"--pipeline-parallel-size in engine.extra_args: {word or 'nothing'}; expected a whole number from 1"
    )
    assert (finding.outcome, finding.exit_code, said in finding.found) == ("fail", 2, True), finding


def test_fit_counts_the_draft_model(tmp_path: Path) -> None:
    """The block for multi-token prediction takes memory, and KV cache as a layer, only where speculation loads it."""
    found = []
    for words in ("", MTP):
        subject = _subject(tmp_path, **{"engine.extra_args": words})
        find("memory", subject)
        assert subject.fit
        found.append((subject.fit.demand.weights, subject.fit.demand.kv_per_token))
    assert found[1] == (found[0][0] + 5 * GIB // 8, found[0][1] + 1152 + 132)


@pytest.mark.parametrize(
    ("words", "is_loaded"),
    [
        (MTP, True),
        ("""-sc='{"method":"mtp"}' """, True),
        ("--speculative_config.method mtp --speculative-config.num_speculative_tokens 2", True),
        ("--spec-method=mtp --spec-tokens 2", True),
        ("-sc.method deepseek_mtp", True),
        ("-sc.method glm4_moe_mtp", True),
        ("""--speculative-config '{"method":"ngram","num_speculative_tokens":4}' """, False),
        (f"{MTP} --speculative-config.method ngram", False),
        ("-sc.method mtp -sc.model /models/draft", False),
        ("--spec-method eagle3 --spec-model /models/draft", False),
        ("--speculative-config {}", False),
        ("", False),
    ],
)
def test_only_multi_token_prediction_loads_the_files_own_block(
    tmp_path: Path, words: str, is_loaded: bool
) -> None:
    """Other ways to speculate need no block, so a file without one serves with them."""
    subject = _subject(tmp_path, **{"engine.extra_args": words})
    find("memory", subject)
    assert subject.fit
    assert (subject.fit.demand.kv_per_token > 100_152) is is_loaded


def test_a_speculative_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    """The flag and its value are named before the start, and how to write it."""
    finding = find("memory", _subject(tmp_path, **{"engine.extra_args": "--speculative-config mtp"}))
    said = "--speculative-config in engine.extra_args: mtp; expected a JSON object"
    assert (finding.outcome, finding.exit_code, said in finding.found) == ("fail", 2, True), finding


def test_draft_model_that_the_file_lacks_is_refused(tmp_path: Path) -> None:
    """Multi-token prediction is refused before the start where the file has no block for it."""
    path = str(Path(__file__).parents[3] / "demo_model")
    found = {
        words: find("model", _subject(tmp_path, **{"model.path": path, "engine.extra_args": words}))
        for words in (MTP, "-sc.method ngram", "")
    }
    assert (found[MTP].outcome, found[MTP].exit_code) == ("fail", 4)
    assert "no complete block for it: no block" in found[MTP].found
    assert (found["-sc.method ngram"].outcome, found[""].outcome) == ("pass", "pass")


def _weights(subject: Subject, sharded: int) -> Subject:
    weights = GLM5.weights.model_copy(update={"packed_sharded": sharded})
    subject.model = ModelFacts(path=GLM5.path, gguf=GLM5.model_copy(update={"weights": weights}))
    return subject


@pytest.mark.parametrize(
    ("room", "words", "outcome", "said"),
    [
        (6.0, "", "pass", "KV cache for"),
        # what is guessed takes 4 GiB
        (3.0, "", "warn", "fit Lower engine.max_model_len or set engine.enforce_eager."),
        (-0.1, "", "fail", "the model does not fit on a GPU"),
        (-0.1, "--gpu-memory-utilization 0.97", "warn", ": --gpu-memory-utilization in engine.extra_args decides"),
        (-0.1, "--config /etc/vllm.yaml", "warn", ": --config in engine.extra_args decides"),
        (-0.1, "--cpu-offload-gb=20 -dp 2", "warn", ": --cpu-offload-gb, --data-parallel-size in engine.extra_args"),
        (-300.0, "-tp 8", "warn", "by the settings the model does not fit on a GPU"),
    ],
)  # fmt: skip
def test_only_arithmetic_refuses_a_model(
    tmp_path: Path, room: float, words: str, outcome: str, said: str
) -> None:
    """A model is refused where it cannot fit whatever little the guessed parts take, and no flag decides it elsewhere."""
    settings = {"engine.extra_args": words, "engine.max_model_len": 8192, "engine.tensor_parallel_size": 1}
    bare = _weights(_subject(tmp_path, **settings), 0)
    find("memory", bare)
    assert bare.fit
    free = int(GPU.total_bytes * 0.92) - bare.fit.demand.exact
    finding = find("memory", _weights(_subject(tmp_path, **settings), free - int(room * GIB)))
    assert (finding.outcome, said in _text(finding)) == (outcome, True), finding
    assert finding.exit_code == (5 if outcome == "fail" else 0)


@pytest.mark.parametrize("flag", sorted(arguments.ELSEWHERE))
def test_an_estimate_of_something_else_refuses_nothing(tmp_path: Path, flag: str) -> None:
    """With any flag that decides memory in the place of a setting, only the engine can tell."""
    settings = {"engine.extra_args": f"{flag}=x", "engine.tensor_parallel_size": 4}
    assert find("memory", _subject(tmp_path, **settings)).outcome == "warn"


@pytest.mark.parametrize(
    ("words", "outcome", "said"),
    [
        ("--seed 3", "pass", "1 flags in engine.extra_args"),
        ("--disable-log-stats", "warn", "with --disable-log-stats vLLM exports no metrics"),
        ("--api_server_count=2", "warn", "Leave --api-server-count out of engine.extra_args."),
    ],
)
def test_arguments_that_blind_the_service_are_pointed_out(
    tmp_path: Path, words: str, outcome: str, said: str
) -> None:
    """What is lost with a flag is said before the start, and nobody is stopped."""
    finding = find("arguments", _subject(tmp_path, **{"engine.extra_args": words}))
    assert (finding.outcome, said in _text(finding)) == (outcome, True), finding


def test_cpu_fit_counts_the_kv_cache() -> None:
    """On the cpu profile weights and the KV cache share the host's memory."""
    need = fit.Demand(weights=GIB, kv_per_token=1024, graphs=0, context=0)
    assert fit.fit_cpu(need, 3 * GIB, GIB).kv_tokens == 1024**2
    with pytest.raises(FitError, match="does not fit into memory"):
        fit.fit_cpu(need, GIB, GIB)


def test_cpu_context_beyond_the_cache_is_refused(tmp_path: Path) -> None:
    """On the cpu profile the cache has the size it is given, so a longer context fails for certain."""
    subject = _subject(tmp_path, **{"engine.profile": "cpu", "engine.max_model_len": 10_000})
    subject.profile = "cpu"
    finding = find("memory", subject)
    assert (finding.outcome, finding.exit_code) == ("fail", 5), finding
    assert "a context of 10000 tokens does not fit; 9776 tokens fit" in finding.found


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("import time; time.sleep(600)", "ranks 0, 1 did not end in 0.5 s"),
        ("import sys; sys.exit('ncclSystemError')", "rank 0 ended with 1: ncclSystemError"),
    ],
)
def test_all_reduce_is_bounded(program: str, error: str) -> None:
    """Ranks that hang are killed and those that fail are quoted."""
    timeout = 0.5 if "sleep" in program else PATIENCE_SECONDS
    outcome = allreduce.run(2, "gloo", timeout, program)
    assert outcome.is_hang == ("sleep" in program)
    assert (outcome.error or "").replace("rank 1", "rank 0") == error


@pytest.mark.parametrize(
    ("program", "timeout", "error"),
    [
        (
            "import sys, time\nif sys.argv[1] == '1': sys.exit('CUDA error: out of memory')\ntime.sleep(600)",
            PATIENCE_SECONDS,
            "rank 1 ended with 1: CUDA error: out of memory",
        ),
        (
            "import sys, time\nif sys.argv[1] == '1': sys.exit('x' * 10**6 + '\\nlast words')\ntime.sleep(600)",
            PATIENCE_SECONDS,
            "rank 1 ended with 1: last words",
        ),
        ("import sys, time\nif sys.argv[1] == '1': time.sleep(600)", 20, "rank 1 did not end in 20 s"),
    ],
    ids=["one dies", "one dies with many words", "one hangs"],
)
def test_all_reduce_names_the_rank_that_is_to_blame(program: str, timeout: float, error: str) -> None:
    """The rank that failed is named and not one that waits for it; where none failed, those that did not end."""
    outcome = allreduce.run(2, "gloo", timeout, program)
    assert (outcome.error, outcome.is_hang) == (error, "not end" in error)


def test_skipped_rules_are_left_out(tmp_path: Path) -> None:
    """A rule that is named in preflight.skip does not run; one that the start needs cannot be named."""
    settings = _settings(tmp_path, **{"preflight.skip": ["memory"]})
    assert "memory" not in [finding.rule for finding in check(settings)[0].findings]
    with pytest.raises(SettingsError, match="a rule that cannot be skipped: model"):
        check(_settings(tmp_path, **{"preflight.skip": ["model"]}))


def test_command_prints_every_rule(tmp_path: Path) -> None:
    """`glm5 preflight --json` lists all rules in order and ends with 0 on a fit host."""
    model = tmp_path / "good.gguf"
    model.write_text("good")
    pairs = ["--set", f"run_dir={tmp_path}", "--set", "engine.port=18767", "--set", "health.port=18768"]
    done = glm5(
        "preflight", model, "--json", "--profile", "cpu", *pairs, GLM5_CACHE_DIR=str(tmp_path / "cache")
    )
    assert done.returncode == 0, done.stdout
    assert [finding["rule"] for finding in json.loads(done.stdout)["findings"]] == list(RULES)


@pytest.mark.parametrize(
    ("asked", "spare_gib", "held"),
    [("auto", 8, "speed"), ("auto", 1, "memory"), ("memory", 8, "memory"), ("speed", 8, "speed")],
)
def test_auto_holds_for_speed_where_the_context_still_fits(
    tmp_path: Path, asked: str, spare_gib: int, held: str
) -> None:
    """engine.weights=auto is speed where the longest context fits beside the floats, and memory where it does not."""
    layout = fit.Layout("cuda", 8, 2, "auto", eager=False, max_context=32768, step_tokens=8192)
    need = fit.demand(GLM5, layout)
    total = int((need.total + 32768 * need.kv_per_token + spare_gib * GIB) / 0.92)
    host = replace(HOST, gpus=tuple(replace(gpu, total_bytes=total) for gpu in HOST.gpus))
    subject = _subject(tmp_path, host, **{"engine.weights": asked, "engine.max_model_len": 32768})

    assert find("memory", subject).outcome == "pass"
    assert subject.weights == held


def test_weights_held_for_speed_take_what_the_plugin_says_and_a_layer_of_experts() -> None:
    """Speed adds the floats of the dense layers, and the experts of one layer while a long chunk runs."""
    layout = fit.Layout("cuda", 8, 2, "auto", eager=False, step_tokens=8192)
    memory, speed = fit.demand(GLM5, layout), fit.demand(GLM5, replace(layout, held="speed"))
    # Q8_0 takes 17/16 bytes a value, bfloat16 two; a rank has an eighth of o_proj and all of what is replicated
    replicated = 78 * (2624 * 6144 + 4096 * 2048)

    assert speed.weights - memory.weights == pytest.approx(
        (O_PROJ / 8 + replicated) * (2 - 17 / 16), rel=1e-6
    )
    assert speed.step - memory.step == 256 * 3 * 2048 * 6144 * 2 // 8


HASWELL = frozenset({"avx2", "f16c", "fma"})


@pytest.mark.parametrize(
    ("cpu", "ranks", "outcome", "says"),
    [
        (Cpu("x86_64", "Xeon E5 v3", HASWELL, 1), 1, "pass", "Xeon E5 v3, avx2"),
        (
            Cpu("x86_64", "Xeon E5 v2", frozenset({"avx", "f16c"}), 1),
            1,
            "fail",
            "Xeon E5 v2 (x86_64) without avx2, fma",
        ),
        (Cpu("aarch64", "Neoverse", frozenset(), 1), 1, "fail", "Neoverse (aarch64); expected x86_64"),
        (Cpu("x86_64", "EPYC", HASWELL, 1), 2, "fail", "VLLM_CPU_OMP_THREADS_BIND"),
        (Cpu("x86_64", "EPYC", HASWELL, 2), 2, "pass", "EPYC"),
    ],
    ids=["avx2", "no-avx2", "arm", "one-node", "two-nodes"],
)
def test_a_cpu_that_cannot_run_the_engine_is_refused(
    tmp_path: Path, cpu: Cpu, ranks: int, outcome: str, says: str
) -> None:
    """Every build of vLLM's CPU kernels needs AVX2, and vLLM binds each rank to a memory node of its own."""
    subject = _subject(tmp_path, replace(HOST, cpu=cpu), **{"engine.tensor_parallel_size": ranks})
    subject.profile = "cpu"

    finding = find("cpu", subject)

    assert finding.outcome == outcome
    assert says in finding.found


def test_cores_named_for_each_rank_need_no_memory_node_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host with one node serves two ranks once their cores are named."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    host = replace(HOST, cpu=Cpu("x86_64", "EPYC", HASWELL, 1))
    subject = _subject(tmp_path, host, **{"engine.tensor_parallel_size": 2})
    subject.profile = "cpu"

    assert find("cpu", subject).outcome == "pass"


@pytest.mark.parametrize(("listed", "nodes"), [("0", 1), ("0-1,3", 3), ("", 1)])
def test_memory_nodes_are_those_this_process_may_use(listed: str, nodes: int) -> None:
    """The kernel lists them as ranges; one without any has one memory."""
    assert hardware._memory_nodes(f"Name: glm5\nMems_allowed_list:\t{listed}\n") == nodes
