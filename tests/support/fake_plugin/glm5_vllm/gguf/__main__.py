"""Answers `inspect PATH [--json]` as the plugin does; the file's text picks the answer."""

import json
import sys
import time
from pathlib import Path

SIZES = {
    "layers": 2, "mtp_layers": 0, "dense_layers": 1, "context_length": 2048, "hidden": 64, "dense_intermediate": 64,
    "expert_intermediate": 64, "vocab": 64, "heads": 4, "q_lora": 64, "kv_lora": 512, "rope_dim": 64, "nope_dim": 192,
    "value_dim": 256, "experts": 2, "experts_used": 1, "shared_experts": 1, "expert_groups": 1, "expert_groups_used": 1,
    "expert_scale": 1.0, "normalize_experts": True, "indexer_heads": 32, "indexer_dim": 128, "indexer_top_k": 64,
    "rms_epsilon": 1e-5, "rope_theta": 1e6,
}  # fmt: skip
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
    "release": {"name": "no published GLM-5", "evidence": []},
    "tensors": 1,
    "bytes": 4,
    "context_length": 2048,
    "hyperparameters": SIZES,
    "indexer_layers": 2,
    "types": {"F32": {"tensors": 1, "bytes": 4}},
    "load": {"tensors": 1, "bytes": 4},
    "weights": {"floats_sharded": 1},
    "draft_weights": {},
    "speed_weights": {},
    "speed_draft_weights": {},
    "set_aside": {},
    "missing_mtp": [],
    "refused": refused,
    "refused_total": len(refused),
    "tokenizer": {"source": "folder", "tokens": 0, "merges": 0, "chat_templates": [], "error": None},
    "error": f"{path.name}: tensor {refused[0]['name']}: {refused[0]['reason']}" if refused else None,
}
print(json.dumps(report) if "--json" in sys.argv else f"{path}: glm-dsa")
sys.exit(4 if refused else 0)
