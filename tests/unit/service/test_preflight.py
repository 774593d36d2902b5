"""Preflight: every rule can fail, and says what it found and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import pytest

from glm5_service.engine.inspect import Footprint, GgufFacts, Hyperparameters, ModelFacts, Placed
from glm5_service.errors import FitError, SettingsError
from glm5_service.preflight import allreduce, fit
from glm5_service.preflight.check import check
from glm5_service.preflight.host import Gpu, Host
from glm5_service.preflight.report import Finding
from glm5_service.preflight.rules import RULES, find
from glm5_service.preflight.subject import Subject
from glm5_service.settings import Given, Settings, load
from glm5_service.staging.manifest import FileRecord, Manifest, ModelSummary
from tests.support.glm5_command import glm5

GIB = 1024**3
GPU = Gpu("NVIDIA RTX PRO 6000 Blackwell", 96 * GIB, 96 * GIB, (12, 0), False)
HOST = Host((GPU,) * 8, "595.1", (13, 2), True, 0, 0, 64 * GIB, 500 * GIB, 65536, 2**63 - 1)
# GLM-5 as a 402 GiB Q4_K mix
GLM5 = GgufFacts(
    schema_=1,
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
    ),
    draft_weights=Footprint(packed_sharded=5 * GIB),
    hyperparameters=Hyperparameters(layers=78, kv_lora=512, rope_dim=64, indexer_dim=128),
    indexer_layers=78,
)
VERSIONS = {"glm5-service": "0.1.0", "glm5-vllm": "0.1.0", "vllm": "0.33.0"}


def _settings(tmp_path: Path, **values: object) -> Settings:
    given = {
        "run_dir": str(tmp_path / "run"),
        "cache_dir": str(tmp_path / "cache"),
        "engine.host": "127.0.0.1",
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
        ("driver", replace(HOST, cuda=(12, 8)), {}, "fail", "driver 595.1 for CUDA 12.8; expected one for CUDA 13.0"),
        ("driver", replace(HOST, cuda=None, driver=None), {}, "fail", "no driver"),
        ("memory", HOST, {"engine.tensor_parallel_size": 4}, "fail", "the model does not fit on a GPU"),
        ("memory", HOST, {"engine.max_model_len": 900000}, "warn", "a context of 900000 tokens does not fit"),
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
    subject.all_reduce = lambda ranks, backend, timeout: allreduce.Outcome(60.0, "rank 0 did not end in 60 s")
    finding = find("all-reduce", subject)
    assert finding.outcome == "fail"
    for word in ("40 IOMMU groups", "rank 0 did not end in 60 s", "iommu=off", "NCCL_P2P_DISABLE=1"):
        assert word in finding.found


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
        (_remove, "warn", "nobody verified its bytes"),
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
    """402 GiB over 8 cards leave room for about 340k tokens in bf16 and 550k in fp8, as estimated by hand."""
    found = {}
    for kv_dtype in ("auto", "fp8_ds_mla"):
        need = fit.demand(GLM5, "cuda", 8, 2, kv_dtype, eager=False)
        found[kv_dtype] = (need.kv_per_token, fit.fit_gpu(need, 96 * GIB, 0.92).kv_tokens)
    assert (found["auto"][0], found["fp8_ds_mla"][0]) == (100_152, 61_464)
    assert found["auto"][1] == pytest.approx(320_000, rel=0.1)
    assert found["fp8_ds_mla"][1] == pytest.approx(520_000, rel=0.1)


def test_fit_counts_the_draft_model(tmp_path: Path) -> None:
    """The block for multi-token prediction takes memory only where speculative decoding loads it."""
    weights = []
    for words in ("", "--speculative-config {}"):
        subject = _subject(tmp_path, **{"engine.extra_args": words})
        find("memory", subject)
        assert subject.fit
        weights.append(subject.fit.demand.weights)
    assert weights[1] - weights[0] == 5 * GIB // 8


def test_draft_model_that_the_file_lacks_is_refused(tmp_path: Path) -> None:
    """Multi-token prediction is refused before the start where the file has no block for it."""
    path = str(Path(__file__).parents[3] / "service" / "demo_model")
    wishes = {"model.path": path, "engine.extra_args": '--speculative-config {"method":"mtp"}'}
    found = {name: find("model", _subject(tmp_path, **{**wishes, **change})) for name, change in
             {"with": {}, "without": {"engine.extra_args": ""}}.items()}  # fmt: skip

    assert (found["with"].outcome, found["with"].exit_code, found["without"].outcome) == ("fail", 4, "pass")
    assert "no whole block for it: no block" in found["with"].found


def test_cpu_fit_counts_the_kv_cache() -> None:
    """On the cpu profile weights and the KV cache share the host's memory."""
    need = fit.Demand(weights=GIB, kv_per_token=1024, graphs=0, context=0)
    assert fit.fit_cpu(need, 3 * GIB, GIB).kv_tokens == 1024**2
    with pytest.raises(FitError, match="does not fit into memory"):
        fit.fit_cpu(need, GIB, GIB)


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("import time; time.sleep(60)", "rank 0 did not end in 0.5 s"),
        ("import sys; sys.exit('ncclSystemError')", "rank 0 ended with 1: ncclSystemError"),
    ],
)
def test_all_reduce_is_bounded(program: str, error: str) -> None:
    """Ranks that hang are killed and those that fail are quoted."""
    timeout = 0.5 if "sleep" in program else 20
    assert allreduce.run(2, "gloo", timeout, program).error == error


def test_skipped_rules_are_left_out(tmp_path: Path) -> None:
    """A rule that is named in preflight.skip does not run; one that the start needs cannot be named."""
    settings = _settings(tmp_path, **{"preflight.skip": ["memory"]})
    assert "memory" not in [finding.rule for finding in check(settings)[0].findings]
    with pytest.raises(SettingsError, match="no rule that can be skipped: model"):
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
