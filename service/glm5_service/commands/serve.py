"""`glm5 serve`: starts the engine and stays with it."""

from __future__ import annotations

import click

from glm5_service.commands.options import load_settings, setting, settings_options


@click.command("serve")
@click.argument("model", required=False)
@click.argument("vllm_args", nargs=-1, type=click.UNPROCESSED)
@settings_options
@setting("--host", path="engine.host", help="Address of the API.")
@setting("--port", path="engine.port", help="Port of the API.")
@setting("--served-model-name", path="engine.served_model_name", help="Model name that clients send.")
@setting("--dtype", path="engine.dtype", help="auto, float16, bfloat16 or float32.")
@setting("--max-model-len", path="engine.max_model_len", help="Longest context in tokens.")
@setting("--tensor-parallel-size", path="engine.tensor_parallel_size", help="Number of GPUs for the model.")
@setting("--profile", path="engine.profile", help="auto, cpu or cuda.")
@setting("--hf-folder", path="model.hf_folder", help="Folder with config.json and the tokenizer.")
@setting("--run-dir", path="run_dir", help="Folder that the containers of a pod share.")
@click.pass_context
def command(ctx: click.Context, model: str | None, vllm_args: tuple[str, ...]) -> int:
    """Serve MODEL until told to stop.

    MODEL is a GGUF file, any file of a split set, or a folder that holds one set. Arguments after `--` go
    to `vllm serve` unchanged.
    """
    extra: dict[str, tuple[object, str]] = {}
    if model is not None:
        extra["model.path"] = (model, "argument MODEL")
    if vllm_args:
        extra["engine.extra_args"] = (list(vllm_args), "arguments after --")
    settings = load_settings(ctx, extra).settings

    from glm5_service.supervise.start import serve

    return serve(settings)
