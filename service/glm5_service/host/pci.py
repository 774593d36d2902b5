"""Whether PCIe bridges redirect peer traffic (ACS), read from the configuration space below /sys. Judges nothing."""

from __future__ import annotations

from pathlib import Path

EXTENDED_START = 0x100
ACS_CAPABILITY = 0x000D
# source validation may stay on; these send transfers between GPUs up to the root complex
REDIRECTS = 0b0001_1100  # P2P request redirect, P2P completion redirect, upstream forwarding
BRIDGE_CLASS = "0x0604"


def redirecting_bridges(devices: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """How many bridges have ACS redirection on; None where the configuration space cannot be read (needs root)."""
    count, is_readable = 0, False
    for device in sorted(devices.glob("*")):
        try:
            if not (device / "class").read_text().startswith(BRIDGE_CLASS):
                continue
            space = (device / "config").read_bytes()
        except OSError:
            continue
        if len(space) <= EXTENDED_START:
            continue
        is_readable = True
        count += bool((acs_control(space) or 0) & REDIRECTS)
    return count if is_readable else None


def acs_control(space: bytes) -> int | None:
    """The ACS control register of a function (PCIe base specification, 7.7.11); None without ACS."""
    offset, seen = EXTENDED_START, set()
    while offset >= EXTENDED_START and offset + 8 <= len(space) and offset not in seen:
        seen.add(offset)
        header = int.from_bytes(space[offset : offset + 4], "little")
        if header & 0xFFFF == ACS_CAPABILITY:
            return int.from_bytes(space[offset + 6 : offset + 8], "little")
        offset = header >> 20
    return None
