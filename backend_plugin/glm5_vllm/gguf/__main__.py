"""`python -m glm5_vllm.gguf inspect PATH [--json]`: exit code 0, or 4 when the model cannot be loaded."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.inspect import SCHEMA, inspect, report, text
from glm5_vllm.gguf.model.release import DECIDABLE

EXIT_MODEL = 4


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m glm5_vllm.gguf")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("inspect", help="show what a GGUF model is and what would be loaded of it")
    command.add_argument("path", type=Path, help="a file, any split of a set, or a folder with one model")
    command.add_argument(
        "--hf-folder", type=Path, help="config and tokenizer that serve instead of the file's metadata"
    )
    command.add_argument(
        "--chat-template", type=Path, help="Jinja file that serves instead of the file's templates"
    )
    command.add_argument(
        "--release", choices=DECIDABLE, help="which GLM-5 it is, where the file contradicts itself"
    )
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments = parser.parse_args(argv)
    try:
        found = inspect(arguments.path, arguments.hf_folder, arguments.chat_template, arguments.release)
    except GGUFError as error:
        if arguments.json:
            print(json.dumps({"schema": SCHEMA, "error": str(error)}))
        print(error, file=sys.stderr)
        return EXIT_MODEL
    print(json.dumps(report(found), indent=1) if arguments.json else text(found))
    if found.error is not None:
        print(found.error, file=sys.stderr)
        return EXIT_MODEL
    return 0


if __name__ == "__main__":
    sys.exit(main())
