"""Environment variables that the command line itself reads. A module of its own, because `glm5 --help` imports it."""

from __future__ import annotations

from typing import Final

# the settings file
CONFIG: Final = "GLM5_CONFIG"
# show where an error came from
TRACEBACK: Final = "GLM5_TRACEBACK"
