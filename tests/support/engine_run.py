"""Runs prompts through the real vLLM engine in a process of its own: `python -m tests.support.engine_run SPEC OUT`.

SPEC and OUT are JSON files; `tests.support.engine` writes the one and reads the other.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(spec_path: str, out_path: str) -> None:
    spec = json.loads(Path(spec_path).read_text())
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_KVCACHE_SPACE="1",
        **spec["environment"],
    )
    from glm5_vllm.patches import vllm_distribution_name

    vllm_distribution_name.apply()
    from vllm import LLM, SamplingParams

    drafts: list[list[int]] = []
    if "speculative_config" in spec["engine"]:
        _record_drafts(drafts)
    llm = LLM(spec["model"], enforce_eager=True, max_num_seqs=8, max_logprobs=20, **spec["engine"])
    sampling = SamplingParams(
        max_tokens=spec["max_tokens"], temperature=0, ignore_eos=spec["ignore_eos"], logprobs=spec["logprobs"]
    )
    rounds = []
    for _ in range(spec["rounds"]):
        outputs = llm.generate([{"prompt_token_ids": p} for p in spec["prompts"]], sampling, use_tqdm=False)
        rounds.append([_completion(output) for output in outputs])
    Path(out_path).write_text(json.dumps({"rounds": rounds, "drafts": drafts}))


def _record_drafts(drafts: list[list[int]]) -> None:
    """Note what the draft model proposes to the first request at each step; vLLM tells only how much was accepted."""
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    original = SpecDecodeBaseProposer.propose

    def propose(self: Any, *args: Any, **kwargs: Any) -> Any:
        proposed = original(self, *args, **kwargs)
        drafts.append(proposed[0].tolist())
        return proposed

    SpecDecodeBaseProposer.propose = propose


def _completion(output: Any) -> dict[str, Any]:
    completion = output.outputs[0]
    return {
        "tokens": list(completion.token_ids),
        "logprobs": [{str(t): p.logprob for t, p in step.items()} for step in completion.logprobs or []],
        "cached_tokens": output.num_cached_tokens,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
