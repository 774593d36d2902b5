"""Facts of the host that rules ask about: GPUs, shared memory, memory, limits, IOMMU. Gathers, judges nothing."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from glm5_service.host.pci import redirecting_bridges


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML describes it."""

    name: str
    total_bytes: int
    free_bytes: int
    capability: tuple[int, int]
    has_nvlink: bool


@dataclass(frozen=True)
class Cpu:
    """The processor as /proc/cpuinfo describes it, and the memory nodes that this process may use."""

    machine: str
    name: str
    flags: frozenset[str]
    memory_nodes: int


@dataclass(frozen=True)
class Host:
    """The host, or as much of it as this container may use."""

    gpus: tuple[Gpu, ...]
    driver: str | None
    cuda: tuple[int, int] | None
    peer_access: bool | None
    iommu_groups: int
    acs_bridges: int | None
    shm_bytes: int
    available_bytes: int
    open_files: int
    locked_bytes: int
    nvml_error: str | None = None
    cpu: Cpu | None = None


@dataclass(frozen=True)
class _Nvidia:
    """What NVML says; `error` is its word on why that is less than everything."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: tuple[int, int] | None = None
    peer_access: bool | None = None
    error: str | None = None


def look() -> Host:
    """The host now."""
    nvidia = _nvidia()
    open_files, locked = (
        resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK)
    )
    groups = Path("/sys/kernel/iommu_groups")
    return Host(
        gpus=nvidia.gpus,
        driver=nvidia.driver,
        cuda=nvidia.cuda,
        peer_access=nvidia.peer_access,
        nvml_error=nvidia.error,
        iommu_groups=len(list(groups.iterdir())) if groups.is_dir() else 0,
        acs_bridges=redirecting_bridges(),
        shm_bytes=shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else 0,
        available_bytes=_available_bytes(),
        open_files=_unlimited(open_files),
        locked_bytes=_unlimited(locked),
        cpu=_cpu(),
    )


def _cpu() -> Cpu:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    known = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Cpu(
        machine=platform.machine(),
        name=known.get("model name", "unknown"),
        flags=frozenset(known.get("flags", "").split()),
        memory_nodes=_memory_nodes(Path("/proc/self/status").read_text()),
    )


def _memory_nodes(status: str) -> int:
    """How many nodes the list `0-1,3` behind Mems_allowed_list names; one where the kernel has no nodes."""
    listed = next((line for line in status.splitlines() if line.startswith("Mems_allowed_list:")), "")
    parts = [part.partition("-") for part in listed.partition(":")[2].strip().split(",") if part]
    return sum(int(last or first) - int(first) + 1 for first, _, last in parts) or 1


def _unlimited(limit: int) -> int:
    return 2**63 - 1 if limit == resource.RLIM_INFINITY else limit


def _available_bytes() -> int:
    """Free memory, within the container's limit if there is one (cgroup v2, then v1)."""
    available = int(psutil.virtual_memory().available)
    for limit_file, used_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            limit, used = (int(Path(name).read_text()) for name in (limit_file, used_file))
        except (OSError, ValueError):  # no such version, or "max"
            continue
        return min(available, limit - used)
    return available


def _nvidia() -> _Nvidia:
    """GPUs, driver, the driver's CUDA and whether all pairs reach each other; no GPU if one of them does not answer."""
    import pynvml as nvml  # type: ignore[import-untyped]

    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return _Nvidia(error=str(error))
    driver, cuda, asked = None, None, "driver"
    try:
        driver = nvml.nvmlSystemGetDriverVersion()
        version = nvml.nvmlSystemGetCudaDriverVersion_v2()
        cuda = (version // 1000, version % 1000 // 10)
        handles, gpus = [], []
        for index in range(nvml.nvmlDeviceGetCount()):
            asked = f"GPU {index}"
            handles.append(nvml.nvmlDeviceGetHandleByIndex(index))
            gpus.append(_gpu(handles[-1]))
        return _Nvidia(tuple(gpus), driver, cuda, _peers_reach(handles))
    except nvml.NVMLError as error:
        return _Nvidia((), driver, cuda, None, f"{asked}: {error}")
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _gpu(handle: object) -> Gpu:
    import pynvml as nvml

    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    return Gpu(nvml.nvmlDeviceGetName(handle), memory.total, memory.free, capability, _has_nvlink(handle))


def _has_nvlink(handle: object) -> bool:
    from pynvml import NVML_FEATURE_ENABLED, NVMLError, nvmlDeviceGetNvLinkState

    try:
        return bool(nvmlDeviceGetNvLinkState(handle, 0) == NVML_FEATURE_ENABLED)
    except NVMLError:
        return False


def _peers_reach(handles: list[object]) -> bool | None:
    from pynvml import NVML_P2P_CAPS_INDEX_READ, NVML_P2P_STATUS_OK, NVMLError, nvmlDeviceGetP2PStatus

    try:
        return all(
            nvmlDeviceGetP2PStatus(one, other, NVML_P2P_CAPS_INDEX_READ) == NVML_P2P_STATUS_OK
            for one in handles
            for other in handles
            if one is not other
        )
    except NVMLError:
        return None
