"""Settings of staging: where the model comes from and where it goes."""

from __future__ import annotations

from glm5_service.settings.base import Section


class StagingSettings(Section):
    """How the model is fetched."""
