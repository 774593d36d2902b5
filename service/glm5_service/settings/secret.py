"""The one type of secrets, and what a secret must look like wherever it comes from."""

from __future__ import annotations

import unicodedata
from itertools import pairwise
from typing import Annotated

from pydantic import BeforeValidator, SecretStr

from glm5_service.redact import register

# control and format characters and blanks can be named: they say nothing about the secret
_NAMED = ("C", "Z")
# flags of `vllm serve` whose value is a secret; everybody on the host sees a command line
SECRET_FLAGS = ("--api-key", "--hf-token", "--ssl-keyfile-password")


def clean_secret(text: str) -> str:
    """`text` without the line end that an editor or `kubectl create secret --from-file` leaves; it is registered.

    Raises ValueError if what is left cannot be sent in a header: nothing, several lines, blanks, or letters beyond ASCII.
    The message does not hold the secret.
    """
    register(text)
    secret = text.rstrip("\r\n")
    if not secret.strip():
        raise ValueError("a secret that is not empty; to use none, leave it unset")
    for place, char in enumerate(secret, 1):
        if not "!" <= char <= "~":
            named = unicodedata.category(char)[0] in _NAMED
            what = f"U+{ord(char):04X}" if named else "not ASCII"
            raise ValueError(f"one line of ASCII letters, digits and signs; character {place} is {what}")
    return secret


def refuse_secret_flags(given: object) -> object:
    """What is given for `vllm serve`; raises ValueError if a flag in it has a secret as value, which is registered.

    Runs before anything else looks at `given`, so that no other error shows it.
    """
    words = given.split() if isinstance(given, str) else given if isinstance(given, list) else []
    for word, following in pairwise([*map(str, words), ""]):
        name, joined, value = word.partition("=")
        flag = name.replace("_", "-")
        if flag in SECRET_FLAGS:
            register((value if joined else following).strip("'\""))
            where = (
                "engine.api_key, best as GLM5_ENGINE__API_KEY" if flag == "--api-key" else "the environment"
            )
            raise ValueError(f"no {flag}, which everybody on the host can read; put the secret into {where}")
    return given


def _checked(value: object) -> object:
    return clean_secret(value) if isinstance(value, str) else value


SecretText = Annotated[SecretStr, BeforeValidator(_checked)]
