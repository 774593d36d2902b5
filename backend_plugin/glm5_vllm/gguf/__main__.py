"""`python -m glm5_vllm.gguf inspect PATH [--json]`: exit code 0, or 4 when the model cannot be loaded."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.inspect import SCHEMA, error_of, inspect, report, text

EXIT_MODEL = 4


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m glm5_vllm.gguf")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("inspect", help="show what a GGUF model is and what would be loaded of it")
    command.add_argument("path", type=Path, help="a file, any split of a set, or a folder with one model")
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments = parser.parse_args(argv)
    try:
        plan = inspect(arguments.path)
    except GGUFError as error:
        if arguments.json:
            print(json.dumps({"schema": SCHEMA, "error": str(error)}))
        print(error, file=sys.stderr)
        return EXIT_MODEL
    print(json.dumps(report(plan), indent=1) if arguments.json else text(plan))
    if refusal := error_of(plan):
        print(refusal, file=sys.stderr)
        return EXIT_MODEL
    return 0


if __name__ == "__main__":
    sys.exit(main())
