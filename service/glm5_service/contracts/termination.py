"""The termination message: the file by which a container tells Kubernetes why it ended.

Writers: the stager, the supervisor. Readers: the kubelet, which shows it in the pod's status, and `glm5 cluster status`.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from glm5_service.contracts.base import Record
from glm5_service.redact import redact

# the kubelet keeps so many
LIMIT_BYTES: Final = 4096
_REASON: Final = re.compile(r"(?P<reason>[A-Z][A-Za-z]+): (?P<sentence>.*)", re.DOTALL)


class TerminationMessage(Record):
    """What is told: a sentence, and for a stager the reason that metrics and staging.json name too."""

    reason: str | None = None
    sentence: str

    def text(self) -> str:
        """The file's content."""
        return f"{self.reason}: {self.sentence}" if self.reason else self.sentence

    @classmethod
    def of(cls, text: str) -> TerminationMessage:
        """What `text` told."""
        found = _REASON.fullmatch(text.strip())
        return cls(**found.groupdict()) if found else cls(sentence=text.strip())

    def leave(self, path: Path) -> None:
        """Write it to `path` if the kubelet made that file; never raises."""
        with suppress(OSError):
            if path.exists():
                path.write_bytes(redact(self.text()).encode()[:LIMIT_BYTES])
