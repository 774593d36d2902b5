"""`glm5 stage`: brings the model to the volume."""

from __future__ import annotations

import click

from glm5_service.commands.options import load_settings, setting, settings_options


@click.command("stage")
@click.argument("source", required=False)
@click.option(
    "--wait", is_flag=True, help="Fetch nothing. Wait until another stager has published the model."
)
@click.option("--dry-run", is_flag=True, help="Print the plan and change nothing.")
@click.option("--verify", is_flag=True, help="Hash the published model and fetch damaged files again.")
@click.option("--warm", is_flag=True, help="Read the published model into the page cache.")
@settings_options
@setting("--target", path="staging.target", help="Folder on the volume that belongs to this model.")
@setting(
    "--tokenizer-source", path="staging.tokenizer_source", help="Second source, for tokenizer and config."
)
@setting(
    "--quantisation", path="staging.quantisation", help="Quantisation to take if the source holds several."
)
@setting("--refresh", path="staging.refresh", is_flag=True, help="Look for a newer revision at the source.")
@setting(
    "--aside", path="staging.aside", is_flag=True, help="Publish, but leave the current revision current."
)
@setting("--keep", path="staging.keep", help="Revisions kept after publishing.")
@setting("--connections", path="staging.connections", help="Parallel ranged requests.")
@setting("--rate-limit", path="staging.rate_limit", help="Bytes per second. 0 means no limit.")
@setting("--run-dir", path="run_dir", help="Folder for staging.json.")
@click.pass_context
def command(
    ctx: click.Context, source: str | None, wait: bool, dry_run: bool, verify: bool, warm: bool
) -> int:
    """Bring the model from SOURCE to the volume, verify it and publish it.

    SOURCE is hf://org/repo[@revision][/folder or pattern], https://host/file or folder/, s3://bucket/prefix,
    oci://host/repository:tag or file:///path. A run that was stopped or killed continues where it was.
    """
    extra: dict[str, tuple[object, str]] = (
        {} if source is None else {"staging.source": (source, "argument SOURCE")}
    )
    settings = load_settings(ctx, extra).settings

    from glm5_service.staging.command import run
    from glm5_service.staging.stager import Options

    options = Options(wait=wait, dry_run=dry_run, verify=verify, warm=warm)
    return run(settings.staging, options, served=settings.model, run_dir=settings.run_dir)
