"""`glm5 stage`: hands the settings to staging."""

from __future__ import annotations

import click

from glm5_service.commands.options import load_settings, settings_options


@click.command("stage")
@settings_options
@click.pass_context
def command(ctx: click.Context) -> int:
    """Bring the model here, verify it and publish it."""
    from glm5_service.staging.command import run

    return run(load_settings(ctx).settings)
