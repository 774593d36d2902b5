"""`python -m glm5_vllm.serve MODEL [arguments of vllm serve]`: vLLM's server with the plugin certainly in it.

vLLM logs a plugin that can't be imported and goes on without it; here the plugin registers first, so a fault ends the
process with its reason.
"""

from __future__ import annotations

import sys

from glm5_vllm import envs
from glm5_vllm.patches import vllm_distribution_name

# entry points that a worker needs; it loads them by itself
_NEEDED = ("glm5", "glm5_cpu", "gguf")


class PluginLeftOutError(RuntimeError):
    """Processes that vLLM spawns would load other plugins than this one."""


def check_plugins() -> None:
    """Raise PluginLeftOutError if VLLM_PLUGINS keeps spawned processes from loading what this one registers."""
    chosen = envs.vllm_plugins()
    missing = [name for name in _NEEDED if chosen is not None and name not in chosen]
    if missing:
        raise PluginLeftOutError(
            f"VLLM_PLUGINS is {','.join(chosen or [])!r} and leaves out {', '.join(missing)}; expected all of "
            f"{', '.join(_NEEDED)} in it, or no VLLM_PLUGINS. Add them."
        )


def main() -> None:
    check_plugins()
    vllm_distribution_name.apply()
    from vllm.entrypoints.cli.main import main as vllm_main
    from vllm.plugins import load_general_plugins

    from glm5_vllm.patches.apply import apply_to_api_server
    from glm5_vllm.register import register

    load_general_plugins()
    register()
    apply_to_api_server()
    sys.argv = ["vllm", "serve", *sys.argv[1:]]
    vllm_main()


if __name__ == "__main__":
    main()
