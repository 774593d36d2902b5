"""`python -m glm5_vllm.serve MODEL [arguments of vllm serve]`: vLLM's server with the plugin certainly in it.

vLLM logs a plugin that can't be imported and goes on without it; here the plugin registers first, so a fault ends the
process with its reason.
"""

from __future__ import annotations

import sys

from glm5_vllm.patches import vllm_distribution_name


def main() -> None:
    vllm_distribution_name.apply()
    from vllm.entrypoints.cli.main import main as vllm_main
    from vllm.plugins import load_general_plugins

    from glm5_vllm.register import register

    load_general_plugins()
    register()
    sys.argv = ["vllm", "serve", *sys.argv[1:]]
    vllm_main()


if __name__ == "__main__":
    main()
