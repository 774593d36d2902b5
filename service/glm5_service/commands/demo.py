"""`glm5 demo`: hands its arguments to the demo."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("demo")
@click.argument("model", type=click.Path(path_type=Path), required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address the engine listens on.")
@click.option("--port", type=int, default=None, help="Port of the engine. Default: a free one.")
@click.option("--question", default=None, help="Question to ask.")
@click.option("--keep", is_flag=True, help="Keep serving after the answer.")
@click.option("--url", default=None, help="Ask a server that already runs, such as http://127.0.0.1:8000/v1.")
def command(
    model: Path | None, host: str, port: int | None, question: str | None, keep: bool, url: str | None
) -> int:
    """Serve MODEL, ask it a question and show the answer. MODEL is the demo model unless named."""
    from glm5_service.demo import run

    return run(model, host=host, port=port, question=question, keep=keep, url=url)
