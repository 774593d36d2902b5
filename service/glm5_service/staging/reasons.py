"""Why staging fails: the list of reasons with remedies and exit codes, and the errors that carry them.

Reasons are an interface (termination message, staging.json, metrics). They are added, never renamed.
`Transient` means try again. `SourceChanged` means list again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from glm5_service.errors import ExitCode, Glm5Error


class Reason(StrEnum):
    """Why staging ended; the value is what people and machines see."""

    UNAUTHORIZED = "Unauthorized"
    NOT_FOUND = "NotFound"
    UNREACHABLE = "Unreachable"
    THROTTLED = "Throttled"
    UNTRUSTED = "Untrusted"
    REFUSED = "Refused"
    STALLED = "Stalled"
    CHANGED = "Changed"
    NO_DIGEST = "NoDigest"
    AMBIGUOUS = "Ambiguous"
    OUT_OF_SPACE = "OutOfSpace"
    READ_ONLY = "ReadOnly"
    VOLUME_FAULT = "VolumeFault"
    SYMBOLIC_LINK = "SymbolicLink"
    CORRUPT = "Corrupt"
    NOT_A_MODEL = "NotAModel"
    INCOMPLETE = "Incomplete"
    WRONG_ARCHITECTURE = "WrongArchitecture"
    LOCKED = "Locked"
    LOCK_LOST = "LockLost"
    SETTINGS = "Settings"
    INTERRUPTED = "Interrupted"
    INTERNAL = "Internal"


@dataclass(frozen=True)
class Remedy:
    """What a person does about a reason, and the exit code it ends with."""

    exit_code: ExitCode
    text: str


REMEDIES: dict[Reason, Remedy] = {
    Reason.UNAUTHORIZED: Remedy(
        ExitCode.SOURCE,
        "Check the token or keys, and that they may read this source. Accept the terms of a gated model.",
    ),
    Reason.NOT_FOUND: Remedy(ExitCode.SOURCE, "Check the address, the revision and the file names."),
    Reason.UNREACHABLE: Remedy(
        ExitCode.SOURCE, "Check DNS, proxy and network policy, then run again. It continues where it stopped."
    ),
    Reason.THROTTLED: Remedy(
        ExitCode.SOURCE,
        "Lower connections, set rate_limit, or use a token with a higher quota, then run again.",
    ),
    Reason.UNTRUSTED: Remedy(
        ExitCode.SOURCE,
        "Set the right certificate authority in http.ca_file, or use the address that serves https.",
    ),
    Reason.REFUSED: Remedy(
        ExitCode.SOURCE, "Read the server's answer. The same request will not succeed later."
    ),
    Reason.STALLED: Remedy(
        ExitCode.SOURCE,
        "Check the network and the source's limits, then run again. It continues where it stopped.",
    ),
    Reason.CHANGED: Remedy(
        ExitCode.SOURCE, "Wait until the source is stable, or pin a revision. Mirrors must serve equal ETags."
    ),
    Reason.NO_DIGEST: Remedy(
        ExitCode.SOURCE,
        "Put a SHA256SUMS file beside the model (sha256sum * > SHA256SUMS), or set require_digest=false.",
    ),
    Reason.AMBIGUOUS: Remedy(ExitCode.USAGE, "Set quantisation, or name a narrower source."),
    Reason.OUT_OF_SPACE: Remedy(
        ExitCode.FIT, "Enlarge the volume or lower keep, then run again. It continues where it stopped."
    ),
    Reason.READ_ONLY: Remedy(
        ExitCode.FIT,
        "Mount the volume writable for the stager and give its user write permission on the target.",
    ),
    Reason.VOLUME_FAULT: Remedy(ExitCode.FIT, "Check the volume and the node's kernel log, then run again."),
    Reason.SYMBOLIC_LINK: Remedy(
        ExitCode.FIT,
        "Remove the link, or set the target to the folder it leads to. Nothing behind it was touched.",
    ),
    Reason.CORRUPT: Remedy(
        ExitCode.MODEL,
        "Run again: only the damaged file is fetched. If it happens again, the source, proxy or disk is bad.",
    ),
    Reason.NOT_A_MODEL: Remedy(
        ExitCode.MODEL, "Point the source at the GGUF files, not at pointer files or web pages."
    ),
    Reason.INCOMPLETE: Remedy(ExitCode.MODEL, "Complete the set at the source: every split of one model."),
    Reason.WRONG_ARCHITECTURE: Remedy(ExitCode.MODEL, "Choose a GGUF of the expected architecture."),
    Reason.LOCKED: Remedy(ExitCode.FIT, "Wait for the other stager, or raise lock_wait_seconds."),
    Reason.LOCK_LOST: Remedy(ExitCode.FIT, "Let the other stager finish. This one published nothing."),
    Reason.SETTINGS: Remedy(
        ExitCode.USAGE, "Correct the setting. `glm5 config` shows each value and its origin."
    ),
    Reason.INTERRUPTED: Remedy(ExitCode.INTERNAL, "Run again. It continues where it stopped."),
    Reason.INTERNAL: Remedy(ExitCode.INTERNAL, "Report it, with the log."),
}


class StagingError(Glm5Error):
    """Staging ended for `reason`; the sentence carries what, value, expectation and the reason's remedy."""

    def __init__(self, reason: Reason, what: str, value: object = None, *, expected: str = "") -> None:
        self.reason = reason
        self.exit_code = REMEDIES[reason].exit_code
        super().__init__(what, value, expected=expected, remedy=REMEDIES[reason].text)


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
