"""Settings of `glm5`: one tree, read from flags, environment and file by `load` and nobody else."""

from glm5_service.settings.load import Loaded, load
from glm5_service.settings.sources import Given
from glm5_service.settings.tree import Settings

__all__ = ["Given", "Loaded", "Settings", "load"]
