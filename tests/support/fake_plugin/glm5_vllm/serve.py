"""Stands in for the engine: writes what it was started with, then does what FAKE_ENGINE says.

`serve` answers HTTP behind the real gate; the others only live and die.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

behaviour = os.environ.get("FAKE_ENGINE", "obey")
run_dir = Path(os.environ["GLM5_RUN_DIR"])
facts = {"argv": sys.argv[1:], "pid": os.getpid(), "env": dict(os.environ)}
orphan = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
if behaviour in ("leave-child", "crash-and-leave-child"):
    facts["orphan"] = subprocess.Popen([sys.executable, "-c", orphan]).pid
if behaviour == "obey":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
elif behaviour == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
started = run_dir / "started.json"
started.with_suffix(".tmp").write_text(json.dumps(facts))
started.with_suffix(".tmp").rename(started)
print("engine says hello", flush=True)
if behaviour.startswith("crash"):
    sys.exit(3)
if behaviour == "serve":
    # vLLM's lines for a load that is shorter than any poll
    print("INFO Starting to load model stand-in...", flush=True)
    print("INFO init engine (profile, create kv cache, warmup model) took 0.1 s", flush=True)
    core = (
        "import ctypes, time; ctypes.CDLL(None).prctl(15, b'VLLM::EngineCore');"
        "print('up', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        ["VLLM::EngineCore", "-c", core], executable=sys.executable, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        (run_dir / "core.pid").write_text(str(process.pid))
        from glm5_vllm.fake_api import main

        main(sys.argv[1:], run_dir)
        process.kill()
    sys.exit(0)
while True:
    time.sleep(60)
