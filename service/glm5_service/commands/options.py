"""Options shared by commands that take settings: --config, --set, and named flags bound to a setting each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])
_FLAGS = "glm5_flags"


def _collect(ctx: click.Context) -> dict[str, tuple[object, str]]:
    found: dict[str, tuple[object, str]] = ctx.meta.setdefault(_FLAGS, {})
    return found


def setting(*names: str, path: str, help: str, **kwargs: Any) -> Callable[[Function], Function]:
    """A flag that sets one setting and stays out of the command's arguments."""

    def keep(ctx: click.Context, param: click.Parameter, value: object) -> None:
        if value is not None:
            _collect(ctx)[path] = (value, f"flag {names[0]}")

    return click.option(*names, callback=keep, expose_value=False, default=None, help=help, **kwargs)


def settings_options(function: Function) -> Function:
    """`--config FILE` and `--set NAME=VALUE`."""

    def keep_pairs(ctx: click.Context, param: click.Parameter, pairs: tuple[str, ...]) -> None:
        for pair in pairs:
            name, sign, value = pair.partition("=")
            if not sign:
                # what was given may be a secret behind a wrong sign
                raise click.BadParameter("no = in it; expected NAME=VALUE, such as engine.port=8001")
            _collect(ctx)[name] = (value, "flag --set")

    def keep_file(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
        ctx.meta["glm5_config"] = value

    function = click.option(
        "--set", "pairs", multiple=True, metavar="NAME=VALUE", callback=keep_pairs, expose_value=False,
        help="Any setting that `glm5 config` lists. Repeatable.",
    )(function)  # fmt: skip
    return click.option(
        "--config", type=click.Path(path_type=Path), metavar="FILE", callback=keep_file, expose_value=False,
        help="Settings file, YAML (also GLM5_CONFIG).",
    )(function)  # fmt: skip


def load_settings(ctx: click.Context, extra: dict[str, tuple[object, str]] | None = None) -> Any:
    """Settings from everything this command was given; see `glm5_service.settings.load`."""
    from glm5_service.settings import Given, load

    flags = {path: Given(value, origin) for path, (value, origin) in (_collect(ctx) | (extra or {})).items()}
    return load(flags, config=ctx.meta.get("glm5_config"))
