"""`serve`: the server of transformers for a model folder, after the folder was checked."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from launcher.io.files import expand_user
from launcher.terminal import console
from neobert.errors import EXIT_INTERRUPTED, EXIT_USAGE, ProjectError
from neobert.generation.folder import chat_folder

REVISION, MAX_NAME_BYTES = "served", 255
NEEDED = ("fastapi", "uvicorn", "openai")


def run(folder: Path, host: str, port: int, device: str | None) -> int:
    """Serve an OpenAI-compatible API until Ctrl-C or an error of the server; return the exit code.

    Raises ProjectError if the folder has no model for chat, or a package of the server is not installed.
    """
    folder = chat_folder(expand_user(folder)).absolute()
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        message = f"the server needs packages that are not installed: {', '.join(missing)}"
        raise ProjectError("serve", message, "run: pip install 'transformers[serving]'", exit_code=EXIT_USAGE)
    quoted = shlex.quote(str(folder))
    console.log(f"serving {quoted} at http://{host}:{port}/v1 (Ctrl-C ends it)")
    console.log(f"to chat: neobert-launch chat http://{host}:{port} --model {quoted}")
    console.log("faster servers, where they are installed:")
    console.log(f"  vllm serve {quoted} --dtype bfloat16 --host {host} --port {port}")
    console.log(f"  python -m sglang.launch_server --model-path {quoted} --host {host} --port {port}")
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder)]
    options = ["--host", host, "--port", str(port), *(["--device", device] if device else [])]
    try:
        with TemporaryDirectory(prefix="neobert-serve-") as cache:
            # The server lists the models of the Hub's cache: here, of one that has the served folder alone.
            _add_to_cache(Path(cache), folder)
            environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": cache}
            return subprocess.run([*command, *options], env=environment, check=False).returncode
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _add_to_cache(cache: Path, folder: Path) -> None:
    """Add a folder to a Hub cache as if it were a model, so that the server lists it.

    Skipped for a path with `--`, which cache names use for a slash, and for a path that is too long.
    """
    name = f"models--{str(folder).replace('/', '--')}"
    if "--" in str(folder) or len(os.fsencode(name)) > MAX_NAME_BYTES:
        return
    (cache / name / "refs").mkdir(parents=True)
    (cache / name / "refs" / "main").write_text(REVISION)
    (cache / name / "snapshots" / REVISION).mkdir(parents=True)
    (cache / name / "snapshots" / REVISION / "config.json").symlink_to(folder / "config.json")
