"""`glm5 cluster`: a cluster before the chart is installed, and a release after."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

import click

from glm5_service.commands.options import load_settings, settings_options
from glm5_service.errors import ExitCode, SettingsError, SourceError

if TYPE_CHECKING:
    from glm5_service.cluster.release_status import PodStatus

WATCH_SECONDS = 2.0
_context = click.option("--context", help="Context of the kubeconfig. Default: the current one.")
_namespace = click.option("--namespace", "-n", help="Namespace. Default: that of the context.")


@click.group("cluster")
def command() -> None:
    """Check a cluster before installing, and follow an installed release."""
    if importlib.util.find_spec("lightkube") is None:
        raise SettingsError(
            "the Kubernetes client is not installed",
            "lightkube",
            expected="glm5-service[cluster]",
            remedy="Run `pip install 'glm5-service[cluster]'`.",
        )


@command.command("check")
@click.argument("manifests", type=click.File("r"), default="-")
@_context
@_namespace
def check(manifests: TextIO, context: str | None, namespace: str | None) -> int:
    """Check whether this cluster can run MANIFESTS, the output of `helm template` (default: standard input).

    helm template glm5 charts/glm5 -f values.yaml | glm5 cluster check -n llm
    """
    from glm5_service.cluster.client import Cluster
    from glm5_service.cluster.install_rules import findings
    from glm5_service.cluster.screen import check_text
    from glm5_service.cluster.wanted import read

    wanted = read(manifests.read())
    found = list(findings(wanted, Cluster(context, namespace).facts(wanted.secrets, wanted.own_labels)))
    click.echo(check_text(found))
    return ExitCode.FIT if any(finding.level == "fail" for finding in found) else ExitCode.DONE


@command.command("status")
@click.option("--release", default="glm5", show_default=True, help="Name of the helm release.")
@click.option("--watch", is_flag=True, help="Refresh every two seconds.")
@_context
@_namespace
def status(release: str, watch: bool, context: str | None, namespace: str | None) -> int:
    """Show phase, staging, backend, last failure and events of a release.

    The exit code is 0 if every pod is ready, else 6.
    """
    from glm5_service.cluster.client import Cluster
    from glm5_service.cluster.release_status import read_status
    from glm5_service.cluster.screen import status_text

    cluster = Cluster(context, namespace)
    pods = read_status(cluster, release)
    while True:
        now = datetime.now(UTC)
        if watch:
            click.clear()
            click.echo(f"{release} in {cluster.namespace}, {now:%H:%M:%S} UTC\n")
        click.echo(status_text(pods, now))
        if not watch:
            return ExitCode.DONE if all(pod.ready for pod in pods) else ExitCode.ENGINE
        sys.stdout.flush()
        pods = _read_again(lambda: read_status(cluster, release))


def _read_again(read: Callable[[], list[PodStatus]]) -> list[PodStatus]:
    """The next status; below the last one it is said why there is none yet, as between two pods of an upgrade."""
    while True:
        time.sleep(WATCH_SECONDS)
        try:
            return read()
        except SourceError as error:
            click.echo(f"{datetime.now(UTC):%H:%M:%S} UTC  {error}")


@command.command("events", hidden=True)
@settings_options
@click.pass_context
def events(ctx: click.Context) -> None:
    """Report phase changes of this pod as Kubernetes Events."""
    from glm5_service.cluster.events import run
    from glm5_service.redact import configure_logging

    settings = load_settings(ctx).settings
    configure_logging(settings.log.level)
    run(settings.run_dir)
