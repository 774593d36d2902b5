"""Reads SHA256SUMS, which states digests where a source has no other way: `sha256sum * > SHA256SUMS`."""

from __future__ import annotations

import re

from glm5_service.staging.reasons import Reason, StagingError

SUMS_NAME = "SHA256SUMS"
_LINE = re.compile(r"^(?P<hex>[0-9a-fA-F]{64}) [ *](?P<name>.+)$")


def parse_sums(data: bytes, where: str) -> dict[str, str]:
    """Digest by file name, as sha256sum writes them; paths are relative to the list."""
    sums: dict[str, str] = {}
    for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), start=1):
        if not line.strip():
            continue
        match = _LINE.match(line)
        if match is None:
            raise StagingError(
                Reason.REFUSED,
                f"line {number} of {SUMS_NAME} in {where}",
                line[:80],
                expected="<sha256>  <name>",
            )
        sums[match["name"].removeprefix("./")] = match["hex"].lower()
    return sums
