"""What can go wrong between a source and a worker without being the end: try again, or list again."""

from __future__ import annotations

from glm5_service.staging.reasons import Reason


class Transient(Exception):
    """An attempt failed; another may succeed. `retry_after` is what the server asked for, in seconds."""

    def __init__(self, reason: Reason, sentence: str, retry_after: float | None = None) -> None:
        self.reason, self.sentence, self.retry_after = reason, sentence, retry_after
        super().__init__(sentence)


class SourceChanged(Exception):
    """The source no longer serves the file that was listed."""

    def __init__(self, name: str, why: str) -> None:
        self.name, self.why = name, why
        super().__init__(f"{name}: {why}")


class Stopped(Exception):
    """The run was told to stop while this thread was waiting or copying."""
