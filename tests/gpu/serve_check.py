"""`vllm serve` with separate processes: which backend the log and the attestation name, and what a refusal says.

serve_check.py FOLDER: writes serve.json with both. Needs the plugin's entry points to be installed.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.gpu.engine_check import OURS
from tests.gpu.engine_run import VOCAB, write_model

START_SECONDS = 240


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


def serve(folder: Path, name: str, port: int, *flags: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder / "model")]
    command += ["--port", str(port), "--max-model-len", "8192"]
    command += ["--gpu-memory-utilization", "0.4", "--served-model-name", "tiny", "--attention-backend", OURS]
    environment = {**os.environ, "GLM5_RUN_DIR": str(folder / name)}
    (folder / name).mkdir()
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen([*command, *flags], stdout=log, stderr=subprocess.STDOUT, env=environment)


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


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder / "model", 8)
    write_tokenizer(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # one after the other: vLLM does not start beside a process that gives memory back
    refused = serve(folder, "refused", port, "--kv-cache-dtype", "fp8_e5m2")
    refused.wait(START_SECONDS)
    served = serve(folder, "served", port)
    try:
        wait_healthy(served, port)
        answer = ask(port)
        attestation = json.loads((folder / "served/attention/rank-0.json").read_text())
    finally:
        served.terminate()
        served.wait(60)
    log = (folder / "served.log").read_text()
    reason = re.search(r"ValueError: (Selected backend .*)", (folder / "refused.log").read_text())
    result = {
        "log": re.findall(r"Using .*TRITON_MLA_SPARSE.*", log)[:1],
        "attestation": attestation,
        "completion_tokens": answer["usage"]["completion_tokens"],
        "refused_exit_code": refused.returncode,
        "refused_reason": reason and reason.group(1),
    }
    (folder / "serve.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
