"""The entry points vLLM calls in every process: API server, engine core and each worker.

Both may run more than once in a process, so everything they do is idempotent. Whatever they raise ends the process:
a server without the plugin would serve with another backend, or fail later with a worse message.
"""

from __future__ import annotations


def platform() -> str | None:
    """Entry point `vllm.platform_plugins`: the CPU profile's platform where vLLM was built for CPU, else none."""
    from vllm.platforms import builtin_platform_plugins

    from glm5_vllm.patches import cpu_instruction_sets, vllm_distribution_name

    # vLLM tells its CPU build by the version of a distribution called vllm, so the name comes first
    vllm_distribution_name.apply()
    if builtin_platform_plugins["cpu"]() is None:
        return None
    cpu_instruction_sets.apply()
    return "glm5_vllm.cpu.platform.Glm5CpuPlatform"


def register() -> None:
    """Entry point `vllm.general_plugins`: check the version, register backends, apply the patches in their order."""
    from vllm.platforms import current_platform

    from glm5_vllm import compile_marks, versions
    from glm5_vllm.patches import apply

    versions.check_vllm(current_platform.device_type)
    if current_platform.is_cuda():
        from glm5_vllm.attention import registration

        compile_marks.watch_triton()
        registration.register_backend()
        registration.prefer_backend()
        capability = current_platform.get_device_capability()
        if capability is not None:
            _choose_indexer_logits((capability.major, capability.minor))
    apply.apply_all()

    from glm5_vllm.gguf.loader import register_loader

    register_loader()


def _choose_indexer_logits(capability: tuple[int, int]) -> None:
    from glm5_vllm.indexer import fallback

    if fallback.needs_triton_logits(capability, fallback.has_nvcc()):
        fallback.use_triton_logits()
