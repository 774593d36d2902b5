"""ACS as it stands in the configuration space of PCIe bridges."""

from __future__ import annotations

from pathlib import Path

import pytest

from glm5_service.host.pci import acs_control, redirecting_bridges


def _space(control: int | None, size: int = 4096) -> bytes:
    """A configuration space with an AER capability and, behind it, ACS with this control register."""
    space = bytearray(size)
    following = 0x148 if control is not None else 0
    space[0x100:0x104] = (0x0001 | 1 << 16 | following << 20).to_bytes(4, "little")
    if control is not None:
        space[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
        space[0x14E:0x150] = control.to_bytes(2, "little")
    return bytes(space)


def _device(folder: Path, name: str, kind: str, space: bytes) -> None:
    device = folder / name
    device.mkdir()
    (device / "class").write_text(kind)
    (device / "config").write_bytes(space)


@pytest.mark.parametrize("control", [None, 0, 0x1D])
def test_control_register_is_found_behind_other_capabilities(control: int | None) -> None:
    """The list of extended capabilities is followed to ACS, or to its end."""
    assert acs_control(_space(control)) == control


def test_a_list_that_loops_ends() -> None:
    """Broken hardware must not hang the check."""
    space = bytearray(_space(None))
    space[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    assert acs_control(bytes(space)) is None


def test_bridges_with_redirection_count(tmp_path: Path) -> None:
    """Only bridges count, and only if a redirection is on; source validation alone is harmless."""
    _device(tmp_path, "a", "0x060400\n", _space(0x1D))
    _device(tmp_path, "b", "0x060400\n", _space(0x01))
    _device(tmp_path, "c", "0x030200\n", _space(0x1D))
    assert redirecting_bridges(tmp_path) == 1


def test_unreadable_space_is_unknown(tmp_path: Path) -> None:
    """Without root the kernel shows 64 bytes, which say nothing about ACS."""
    _device(tmp_path, "a", "0x060400\n", _space(0x1D)[:64])
    assert redirecting_bridges(tmp_path) is None
