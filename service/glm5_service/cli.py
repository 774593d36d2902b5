"""The command `glm5`: the table of its commands, and the one place where an error becomes an exit code.

Commands live in `commands/`, one module each, and are imported when they are called.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence

import click

from glm5_service import __version__
from glm5_service.errors import ExitCode, Glm5Error
from glm5_service.redact import redact, redacted_traceback
from glm5_service.variables import TRACEBACK

# name -> (module, one line of help); help must not import the command
COMMANDS = {
    "stage": ("glm5_service.commands.stage", "Download the model, verify it and publish it."),
    "preflight": ("glm5_service.commands.preflight", "Check whether this host can serve the model."),
    "serve": ("glm5_service.commands.serve", "Start the engine and supervise it."),
    "sidecar": ("glm5_service.commands.sidecar", "Serve /metrics for the whole pod."),
    "gguf": ("glm5_service.commands.gguf", "Inspect a GGUF file."),
    "config": ("glm5_service.commands.config", "Show every setting, its value and its origin."),
    "cluster": ("glm5_service.commands.cluster", "Check a cluster, or follow a release."),
    "demo": ("glm5_service.commands.demo", "Serve the demo model and ask it a question."),
}


class LazyGroup(click.Group):
    """A group that imports a command only when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command's own object, imported now."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="glm5")
@click.option("--traceback", is_flag=True, help="Show the traceback of an error (also GLM5_TRACEBACK=1).")
def cli(traceback: bool) -> None:
    """Stage, serve and watch GLM-5 on vLLM.

    Exit codes: 0 done, 1 internal error, 2 wrong usage or settings, 3 source unreachable or refused,
    4 wrong model file, 5 the model does not fit or the host cannot serve it, 6 the engine failed.
    """
    if traceback:
        os.environ[TRACEBACK] = "1"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command and end the process with its exit code."""
    # the first process of a container is not ended by a signal that it does not handle
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(run(argv))


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    try:
        result = cli.main(args=argv, prog_name="glm5", standalone_mode=False)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(file=shown)
        print(redact(shown.getvalue()), end="", file=sys.stderr)
        return ExitCode.USAGE
    except click.Abort:
        return ExitCode.USAGE
    except Exception as error:
        # python 3.11 wraps what a signal raises while a class is made
        if isinstance(error.__cause__, SystemExit):
            raise error.__cause__ from None
        if os.environ.get(TRACEBACK, "0") not in ("", "0"):
            print(redacted_traceback(error), file=sys.stderr)
            return error.exit_code if isinstance(error, Glm5Error) else ExitCode.INTERNAL
        if isinstance(error, Glm5Error):
            print(f"glm5: {error}", file=sys.stderr)
            return error.exit_code
        print(
            f"glm5: internal error: {redact(repr(error))}. Run again with `glm5 --traceback`.",
            file=sys.stderr,
        )
        return ExitCode.INTERNAL
    return result if isinstance(result, int) else ExitCode.DONE
