"""The backend's name in vLLM's registry, in other processes, and in the CUDA platform's list."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from glm5_vllm import compile_marks, register, serve, versions
from glm5_vllm.attention import registration
from glm5_vllm.gguf import loader
from glm5_vllm.patches import apply


@pytest.fixture
def registry() -> Iterator[Any]:
    """vLLM's registry without our name before and after."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum as Registry

    def forget() -> None:
        member = Registry._member_map_.pop(registration.BACKEND_NAME, None)
        if member is not None:
            Registry._value2member_map_.pop(member._value_, None)
            Registry._member_names_.remove(registration.BACKEND_NAME)
            delattr(Registry, registration.BACKEND_NAME)

    forget()
    yield Registry
    forget()


def test_registers_once(registry: Any) -> None:
    """Registering any number of times leaves one member with our class."""
    registration.register_backend()
    registration.register_backend()

    assert registry[registration.BACKEND_NAME].get_path() == registration.BACKEND_CLASS


def test_name_of_somebody_else_is_refused(registry: Any) -> None:
    """A backend of the same name that is not ours is named in the refusal."""
    registry.register(registration.BACKEND_NAME, "elsewhere.Backend")

    with pytest.raises(registration.RegistrationError, match=r"belongs to elsewhere\.Backend"):
        registration.register_backend()


def test_member_survives_a_process_without_plugins(registry: Any) -> None:
    """A pickled member is itself again in a process that has loaded no plugin, as spawned workers do."""
    registration.register_backend()
    pickled = pickle.dumps(registry[registration.BACKEND_NAME])

    code = f"import pickle; print(pickle.loads({pickled!r}).name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split()[-1] == registration.BACKEND_NAME


@pytest.mark.parametrize(
    ("major", "expected"),
    [
        (12, ["TRITON_MLA_SPARSE", "FLASHMLA_SPARSE"]),
        (9, ["FLASHMLA_SPARSE", "TRITON_MLA_SPARSE"]),
        (8, ["FLASHMLA_SPARSE", "TRITON_MLA_SPARSE"]),
    ],
)
def test_place_in_the_platforms_list(registry: Any, major: int, expected: list[str]) -> None:
    """The backend is first on SM120 and behind stock's elsewhere, so stock stays the default where it works."""
    registration.register_backend()
    listed = registration._with_backend(lambda *_, **__: [registry.FLASHMLA_SPARSE])

    found = listed(True, SimpleNamespace(major=major), num_heads=8)

    assert expected == [member.name for member in found]


def test_other_attention_keeps_its_list(registry: Any) -> None:
    """Models without MLA get stock's list as it is."""
    registration.register_backend()
    listed = registration._with_backend(lambda *_, **__: [registry.FLASH_ATTN])

    assert listed(False, SimpleNamespace(major=12)) == [registry.FLASH_ATTN]


@pytest.mark.parametrize(("is_cuda", "expected"), [(True, ["watched"]), (False, [])])
def test_compilations_are_watched_on_cards(
    registry: Any, monkeypatch: pytest.MonkeyPatch, is_cuda: bool, expected: list[str]
) -> None:
    """Where Triton compiles while serving, its compilations are marked; elsewhere Triton is not even imported."""
    from vllm.platforms import current_platform

    watched: list[str] = []
    monkeypatch.setattr(current_platform, "is_cuda", lambda: is_cuda)
    monkeypatch.setattr(current_platform, "get_device_capability", lambda: None)
    monkeypatch.setattr(versions, "check_vllm", lambda platform: None)
    monkeypatch.setattr(registration, "prefer_backend", lambda: None)
    monkeypatch.setattr(apply, "apply_all", lambda: None)
    monkeypatch.setattr(loader, "register_loader", lambda: None)
    monkeypatch.setattr(compile_marks, "watch_triton", lambda: watched.append("watched"))

    register.register()

    assert watched == expected


@pytest.mark.parametrize(
    ("chosen", "missing"), [("gguf,mine", "glm5, glm5_cpu"), ("", "glm5, glm5_cpu, gguf")]
)
def test_plugins_that_workers_would_go_without(
    chosen: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where VLLM_PLUGINS keeps workers from loading the plugin the server does not start, and says what to add."""
    monkeypatch.setenv("VLLM_PLUGINS", chosen)

    with pytest.raises(
        serve.PluginLeftOutError, match=f"leaves out {missing}; expected all of glm5, glm5_cpu, gguf"
    ):
        serve.main()


@pytest.mark.parametrize("chosen", [None, "mine,glm5,gguf,glm5_cpu"])
def test_plugins_that_workers_load(chosen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without VLLM_PLUGINS, or with all of ours in it, nothing is in the way."""
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    if chosen:
        monkeypatch.setenv("VLLM_PLUGINS", chosen)

    serve.check_plugins()
