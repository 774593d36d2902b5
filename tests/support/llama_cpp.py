"""llama.cpp as an oracle: greedy continuations by xllamacpp, one process a call because it keeps threads and logs much.

`python -m tests.support.llama_cpp SPEC OUT` is that process; SPEC and OUT are JSON files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = 1024


def greedy(path: Path, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Up to `tokens` ids after each prompt, greedily, with the one that ends the turn; `path` is a file or first split.

    llama.cpp quantises activations to 8 bits, so only prompts whose continuation wins clearly can be compared.
    """
    with tempfile.TemporaryDirectory() as folder:
        spec, out = Path(folder, "spec.json"), Path(folder, "out.json")
        spec.write_text(json.dumps({"path": str(path), "prompts": prompts, "tokens": tokens}))
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.llama_cpp", str(spec), str(out)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert out.exists(), f"llama.cpp ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"
        continuations: list[list[int]] = json.loads(out.read_text())
        return continuations


def main(spec_path: str, out_path: str) -> None:
    """Load the model, continue every prompt, write the ids."""
    import xllamacpp

    spec = json.loads(Path(spec_path).read_text())
    parameters = xllamacpp.CommonParams()
    parameters.model.path = spec["path"]
    parameters.n_ctx = CONTEXT
    parameters.n_parallel = 1
    parameters.n_gpu_layers = 0
    # with more than one, ggml's threads spin while they wait for each other, which starves a busy machine
    parameters.cpuparams.n_threads = 1
    parameters.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(parameters)
    continuations = []
    for prompt in spec["prompts"]:
        # only the verbose answer has the ids; the list of probabilities lumps tokens that are half a character
        request = {"prompt": prompt, "max_tokens": spec["tokens"], "temperature": 0, "return_tokens": True}
        answer = server.handle_completions(request | {"verbose": True})
        continuations.append(answer["__verbose"]["tokens"])
    Path(out_path).write_text(json.dumps(continuations))


if __name__ == "__main__":
    main(*sys.argv[1:])
