"""The sources of a model. Each scheme has a module that lists files and opens a byte range of one.

`open_source` picks the module. Next: `sources.listing`.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.sources.base import Source


def open_source(uri: str, settings: StagingSettings) -> Source:
    """The source behind `uri`; nothing is contacted yet."""
    scheme = urlsplit(uri).scheme
    if scheme == "hf":
        from glm5_service.staging.sources.hub import HubSource

        return HubSource(uri, settings)
    if scheme == "s3":
        from glm5_service.staging.sources.s3 import S3Source

        return S3Source(uri, settings)
    if scheme == "oci":
        from glm5_service.staging.sources.oci import OciSource

        return OciSource(uri, settings)
    if scheme == "file":
        from glm5_service.staging.sources.local import LocalSource

        return LocalSource(uri)
    from glm5_service.staging.sources.https import HttpsSource

    return HttpsSource(uri, settings)
