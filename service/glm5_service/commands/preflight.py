"""`glm5 preflight`: whether this host can serve this model."""

from __future__ import annotations

import click

from glm5_service.commands.options import load_settings, setting, settings_options


@click.command("preflight")
@click.argument("model", required=False)
@settings_options
@setting("--tensor-parallel-size", path="engine.tensor_parallel_size", help="Number of GPUs for the model.")
@setting("--profile", path="engine.profile", help="auto, cpu or cuda.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.pass_context
def command(ctx: click.Context, model: str | None, as_json: bool) -> int:
    """Check whether this host can serve MODEL. Each rule passes, warns or fails, and says what to do.

    The exit code is that of the first rule that failed, else 0.
    """
    extra: dict[str, tuple[object, str]] = {} if model is None else {"model.path": (model, "argument MODEL")}
    settings = load_settings(ctx, extra).settings

    from glm5_service.preflight.check import check

    report, _ = check(settings)
    click.echo(report.model_dump_json(indent=2) if as_json else report.text())
    return report.failure.exit_code if report.failure else 0
