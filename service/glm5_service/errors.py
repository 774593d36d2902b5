"""Every error a user of `glm5` can meet, and the exit code it ends with."""

from __future__ import annotations

from enum import IntEnum

from glm5_service.foreign import SHOWN_CHARACTERS, clean
from glm5_service.redact import redact

LONGEST_PART = 1000


class ExitCode(IntEnum):
    """Exit codes of the command `glm5`; the meaning of a code never changes."""

    DONE = 0
    INTERNAL = 1
    USAGE = 2
    SOURCE = 3
    MODEL = 4
    FIT = 5
    ENGINE = 6


class Glm5Error(Exception):
    """Base of all expected errors: one sentence: what failed, the value, what was expected, what to do."""

    exit_code = ExitCode.INTERNAL

    def __init__(self, what: str, value: object = None, *, expected: str = "", remedy: str = "") -> None:
        # parts of these come from servers, files and users; a secret cut in the middle would not be found
        what, shown, expected = (
            clean(redact(str(part)), limit)
            for part, limit in ((what, LONGEST_PART), (value, SHOWN_CHARACTERS), (expected, LONGEST_PART))
        )
        text = what if value is None else f"{what}: {shown}"
        if expected:
            text += f"; expected {expected}"
        self.what, self.value, self.expected, self.remedy = what, value, expected, remedy
        super().__init__(redact(f"{text}. {remedy}" if remedy else text))


class SettingsError(Glm5Error):
    """A setting, flag or argument is wrong."""

    exit_code = ExitCode.USAGE


class SourceError(Glm5Error):
    """A source is unreachable or refused the request."""

    exit_code = ExitCode.SOURCE


class ModelError(Glm5Error):
    """The model file is not one that can be served."""

    exit_code = ExitCode.MODEL


class FitError(Glm5Error):
    """The model does not fit, or the host is not fit for it."""

    exit_code = ExitCode.FIT


class EngineError(Glm5Error):
    """The engine did not start, or ended by itself."""

    exit_code = ExitCode.ENGINE
