"""`vllm serve` with separate processes: which backend the log and the attestation name, and what a refusal says.

serve_check.py FOLDER: writes serve.json with both; the exit code is 0 where the one answered and the other said why not.
Needs the plugin's entry points to be installed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.gpu.engine_run import VOCAB, write_model
from tests.gpu.engine_runs import OURS
from tests.gpu.engine_summary import origin
from tests.gpu.process import end_groups_on_termination, exit_code, process_group

START_SECONDS = 240
END_SECONDS = 60


def write_tokenizer(folder: Path) -> None:
    """One word a token: enough for an API server to start."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i + 3 for i in range(VOCAB - 3)} | {"<pad>": 0, "<bos>": 1, "<eos>": 2}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    ).save_pretrained(folder)


@contextmanager
def serve(folder: Path, name: str, port: int, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server on the model, with NAME.log and NAME/ for what it attests; it is gone at the end."""
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder / "model")]
    command += ["--port", str(port), "--max-model-len", "8192"]
    command += ["--gpu-memory-utilization", "0.4", "--served-model-name", "tiny", "--attention-backend", OURS]
    run_dir = folder / name
    # an attestation of before would pass for this one's
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir()
    environment = {**os.environ, "GLM5_RUN_DIR": str(run_dir)}
    with process_group([*command, *flags], folder / f"{name}.log", environment) as process:
        yield process
        process.terminate()
        exit_code(process, END_SECONDS)


def ask(port: int) -> dict[str, Any]:
    body = {
        "model": "tiny",
        "prompt": "w1 w2 w3 w4 w5",
        "max_tokens": 16,
        "temperature": 0,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return dict(json.load(answer))


def wait_healthy(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise SystemExit(f"vllm serve did not become healthy: exit code {process.poll()}; see its log")


def refusal(folder: Path, port: int) -> dict[str, Any]:
    """How a server with a cache that the backend does not read ended; no exit code where it did not."""
    with serve(folder, "refused", port, "--kv-cache-dtype", "fp8_e5m2") as process:
        code = exit_code(process, START_SECONDS)
    reason = re.search(
        r"ValueError: (Selected backend .*)", (folder / "refused.log").read_text(errors="replace")
    )
    return {"refused_exit_code": code, "refused_reason": reason and reason.group(1)}


def main(folder: Path) -> int:
    """The exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / "serve.json"
    written.unlink(missing_ok=True)
    write_model(folder / "model", 8)
    write_tokenizer(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # one after the other: vLLM does not start beside a process that gives memory back
    refused = refusal(folder, port)
    print(refused, flush=True)
    with serve(folder, "served", port) as process:
        wait_healthy(process, port)
        answer = ask(port)
        log = (folder / "served.log").read_text(errors="replace")
        attestation = json.loads((folder / "served/attention/rank-0.json").read_text())
        result = {
            **origin([attestation], "python -m tests.gpu.serve_check FOLDER"),
            "log": re.findall(r"Using .*TRITON_MLA_SPARSE.*", log)[:1],
            "attestation": attestation,
            "completion_tokens": answer["usage"]["completion_tokens"],
            **refused,
        }
        # before the end, which may take longer than this process has
        written.write_text(json.dumps(result, indent=1))
        print(json.dumps(result), flush=True)
    return 0 if refused["refused_exit_code"] and refused["refused_reason"] else 1


if __name__ == "__main__":
    end_groups_on_termination()
    raise SystemExit(main(Path(sys.argv[1])))
