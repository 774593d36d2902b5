"""`glm5 config`: every setting with value and origin."""

from __future__ import annotations

import json

import click

from glm5_service.commands.options import load_settings, settings_options


@click.command("config")
@settings_options
@click.option("--json", "as_json", is_flag=True, help="One JSON list instead of a table.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Show every setting, its value and its origin. Secrets are masked."""
    from glm5_service.settings.table import as_text, shown

    rows = shown(load_settings(ctx))
    click.echo(json.dumps([row.model_dump() for row in rows], indent=2) if as_json else as_text(rows))
