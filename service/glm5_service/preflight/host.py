"""Facts of the host that rules ask about: GPUs, shared memory, memory, limits, IOMMU. Gathers, judges nothing."""

from __future__ import annotations

import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from glm5_service.preflight.pci import redirecting_bridges


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML describes it."""

    name: str
    total_bytes: int
    free_bytes: int
    capability: tuple[int, int]
    has_nvlink: bool


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


def look() -> Host:
    """The host now."""
    gpus, driver, cuda, peers = _nvidia()
    open_files, locked = (
        resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK)
    )
    groups = Path("/sys/kernel/iommu_groups")
    return Host(
        gpus=gpus,
        driver=driver,
        cuda=cuda,
        peer_access=peers,
        iommu_groups=len(list(groups.iterdir())) if groups.is_dir() else 0,
        acs_bridges=redirecting_bridges(),
        shm_bytes=shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else 0,
        available_bytes=_available_bytes(),
        open_files=_unlimited(open_files),
        locked_bytes=_unlimited(locked),
    )


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


def _nvidia() -> tuple[tuple[Gpu, ...], str | None, tuple[int, int] | None, bool | None]:
    """GPUs, driver, the driver's CUDA and whether all pairs reach each other; nothing where there is no driver."""
    import pynvml as nvml  # type: ignore[import-untyped]

    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return (), None, None, None
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        gpus = []
        for handle in handles:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            capability = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            name = nvml.nvmlDeviceGetName(handle)
            gpus.append(Gpu(name, memory.total, memory.free, tuple(capability), _has_nvlink(handle)))
        cuda = divmod(nvml.nvmlSystemGetCudaDriverVersion_v2(), 1000)
        driver = nvml.nvmlSystemGetDriverVersion()
        return tuple(gpus), driver, (cuda[0], cuda[1] // 10), _peers_reach(handles)
    finally:
        nvml.nvmlShutdown()


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
