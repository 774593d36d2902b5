"""Answers `inspect PATH [--json]` as the plugin does; the file's text picks the answer."""

import json
import sys
import time
from pathlib import Path

path = Path(sys.argv[2])
kind = path.read_text().strip()
if kind == "slow":
    time.sleep(600)
if kind == "broken":
    print(json.dumps({"schema": 1, "error": f"not a GGUF file: {path}; expected magic GGUF."}))
    sys.exit(4)
if kind == "garbage":
    print("Traceback: something else")
    sys.exit(1)
refused = [{"name": "blk.0.odd", "reason": "unknown to the loader"}] if kind == "refused" else []
report = {
    "schema": 1,
    "path": str(path),
    "files": [{"path": str(path), "bytes": 4}],
    "architecture": "glm-dsa",
    "name": "stand-in",
    "tensors": 1,
    "bytes": 4,
    "context_length": 2048,
    "hyperparameters": {"layers": 2, "kv_lora": 512, "rope_dim": 64, "indexer_dim": 128},
    "indexer_layers": 2,
    "types": {"F32": {"tensors": 1, "bytes": 4}},
    "load": {"tensors": 1, "bytes": 4},
    "weights": {"floats_sharded": 1},
    "set_aside": {},
    "refused": refused,
}
print(json.dumps(report) if "--json" in sys.argv else f"{path}: glm-dsa")
sys.exit(4 if refused else 0)
