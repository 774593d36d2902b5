"""`glm5 sidecar`: the metrics server."""

from __future__ import annotations

import click

from glm5_service.commands.options import load_settings, setting, settings_options


@click.command("sidecar")
@settings_options
@setting("--port", path="sidecar.port", help="Port of /metrics.")
@setting("--run-dir", path="run_dir", help="Folder that the containers of a pod share.")
@click.option("--reference", is_flag=True, help="Print the reference of all metrics and exit.")
@click.pass_context
def command(ctx: click.Context, reference: bool) -> int:
    """Serve /metrics for the whole pod: from the run directory, the supervisor and vLLM."""
    if reference:
        from glm5_service.sidecar import catalog

        click.echo(catalog.reference(), nl=False)
        return 0
    settings = load_settings(ctx).settings

    from glm5_service.sidecar.server import serve

    return serve(settings)
