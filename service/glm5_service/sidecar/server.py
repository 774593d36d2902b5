"""The metrics server on 9400: one page a scrape, built anew each time, nothing kept between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import uvicorn
from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from glm5_service.api.connections import limited
from glm5_service.api.policy import SMALL_SERVER
from glm5_service.host.ports import local_url
from glm5_service.rundir import RunDir
from glm5_service.settings import Settings
from glm5_service.sidecar.catalog import PASSED_THROUGH, PLUGIN
from glm5_service.sidecar.collect import (
    Point,
    attention_points,
    drain_points,
    engine_points,
    families,
    staging_points,
)
from glm5_service.sidecar.passthrough import filter_page
from glm5_service.sidecar.scrape import Scraped, Scraper


class _Points(Collector):
    """Points as a collector of prometheus_client."""

    def __init__(self, points: list[Point]) -> None:
        self._points = points

    def collect(self) -> Iterator[Family]:
        """The families of the points."""
        return families(self._points)


def page(scraped: Scraped) -> bytes:
    """The whole page: ours first, then what passes through."""
    points = list(scraped.points)
    expected = None
    if scraped.state:
        points += engine_points(scraped.state, datetime.now(UTC))
        expected = scraped.state.expected_backend
    points += attention_points(scraped.attested, expected)
    if scraped.staging:
        points += staging_points(scraped.staging)
    if scraped.drain:
        points += drain_points(scraped.drain)
    registry = CollectorRegistry()
    registry.register(_Points(points))
    return (
        generate_latest(registry)
        + filter_page(scraped.engine_page, (*PASSED_THROUGH, *(metric.name for metric in PLUGIN))).encode()
    )


def application(scraper: Scraper) -> FastAPI:
    """`/metrics`, and `/healthz` for the container's own probe."""

    @asynccontextmanager
    async def lifespan(app: FastAPI):  # type: ignore[no-untyped-def]
        yield
        await scraper.close()

    app = FastAPI(title="glm5 sidecar", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(page(await scraper.scrape()), media_type=CONTENT_TYPE_LATEST)

    @app.get("/healthz")
    async def healthz() -> Response:
        return Response()

    return app


def serve(settings: Settings) -> int:
    """Answer scrapes until told to stop."""
    sidecar = settings.sidecar
    scraper = Scraper(
        RunDir(settings.run_dir),
        sidecar.supervisor_url or local_url(settings.health.host, settings.health.port),
        sidecar.engine_url or local_url(settings.engine.host, settings.engine.port),
        sidecar.timeout_seconds,
    )
    uvicorn.run(
        application(scraper),
        host=sidecar.host,
        port=sidecar.port,
        http=limited(SMALL_SERVER),
        ws="none",
        log_level="warning",
        access_log=False,
    )
    return 0
