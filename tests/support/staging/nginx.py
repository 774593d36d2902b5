"""A real range server: nginx with sendfile on a free port."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.glm5_command import PATIENCE_SECONDS
from tests.support.serving import free_port

CONFIG = """
{user}
worker_processes 1;
daemon off;
pid {run}/nginx.pid;
error_log {run}/error.log;
events {{ worker_connections 512; }}
http {{
  sendfile on; sendfile_max_chunk 2m; tcp_nopush on; keepalive_requests 100000; access_log off;
  client_body_temp_path {run}/b; proxy_temp_path {run}/p; fastcgi_temp_path {run}/f;
  uwsgi_temp_path {run}/u; scgi_temp_path {run}/s;
  server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


def wait_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until something listens on `port`; fails if `process` ends first."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, f"server ended with {process.returncode}"
        assert time.monotonic() < deadline, f"nothing listens on {port} after {PATIENCE_SECONDS:g} s"
        time.sleep(0.02)


@contextmanager
def stopped_at_end(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End the process whatever happens inside."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def nginx(root: Path, run: Path) -> Iterator[str]:
    """Serve `root`; gives the base address."""
    run.mkdir(parents=True, exist_ok=True)
    port = free_port()
    config = run / "nginx.conf"
    # as root nginx would hand its workers to www-data, who may not read a test's folder
    user = "user root;" if os.geteuid() == 0 else ""
    config.write_text(CONFIG.format(user=user, run=run, root=root, port=port))
    # -e: without it nginx first tries a log it may not write
    process = subprocess.Popen(["/usr/sbin/nginx", "-e", str(run / "error.log"), "-c", str(config)])
    with stopped_at_end(process):
        wait_port(port, process)
        yield f"http://127.0.0.1:{port}"
