"""Server of warm interpreters: a process that has imported torch and the trainer, and forks for tests.

    python -m tests.warm.server SOCKET CLIENT OWNER

Importing takes up to eight seconds of a core; most children of tests compute for less than one. A client
(`client.py`, which tests put in the place of `sys.executable`) sends its arguments, environment, folder and
open files; the fork runs as that process would. The client stops and ends as its fork does, and the fork ends
with its client. Isolated processes (`-I`) are forks of another one, which has imported libraries but nothing
of this project; its socket is `bare`, in the same folder.
"""

import array
import atexit
import gc
import importlib
import marshal
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
import traceback
import warnings
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

# What all children import, whether they have the project or not.
SHARED = (
    "torch._dynamo",
    "transformers.dynamic_module_utils",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
)
# What children import that load an exported folder, without the project.
LIBRARIES = ("onnxruntime", "sentence_transformers")
# What other children import as they run.
WARM = (
    "launcher.cli.app",
    "launcher.cli.config_options",
    "launcher.commands.evaluate_glue",
    "launcher.commands.init",
    "launcher.commands.plan",
    "launcher.commands.preflight",
    "launcher.commands.run_file_options",
    "launcher.commands.several_runs",
    "launcher.commands.text_jobs",
    "neobert.bench.arm",
    "neobert.encoding.job",
    "neobert.encoding.share",
    "neobert.families.hf.build",
    "neobert.families.neobert.build",
    "neobert.plugins.masking",
    "neobert.prediction.job",
    "neobert.probes.ranks.checks",
    "neobert.rehearsal.observers",
    "neobert.tasks.classification.labels",
    "neobert.tasks.pretraining.masked_words",
    "neobert.tasks.token_task",
    "neobert.training.loop.session",
    "pydantic.dataclasses",
    "pytest",
    "tests.parallel.ranks",
    "torch._inductor.compile_fx",
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    "torch.distributed.run",
    "torch.profiler",
)
# Variables that a module reads as it is imported, and keeps under the same name.
READ_AS_IMPORTED = {
    "HF_HUB_CACHE": "huggingface_hub.constants",
    "HF_MODULES_CACHE": "transformers.dynamic_module_utils",
}
MAX_MESSAGE_BYTES = 1 << 20
MAX_FILES = 64
STOPPED = b"stopped"


class Server:
    """Forks for its clients, waits for their forks, and ends the forks of clients that have gone."""

    def __init__(self, path: Path, owner: int) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        bound = path.with_suffix(".bound")
        self.listener.bind(str(bound))
        self.listener.listen(64)
        bound.rename(path)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        self.selector.register(os.pidfd_open(owner), selectors.EVENT_READ, self.close)
        self.pids: dict[socket.socket, int] = {}
        signalled, wakeup = socket.socketpair()
        wakeup.setblocking(False)
        signal.set_wakeup_fd(wakeup.detach())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(signalled, selectors.EVENT_READ, lambda: self.changed(signalled))

    def serve(self) -> None:
        while True:
            for key, _ in self.selector.select():
                key.data()

    def close(self) -> None:
        """End with the test run."""
        for pid in self.pids.values():
            _kill(pid)
        os._exit(0)

    def accept(self) -> None:
        client, _ = self.listener.accept()
        message, files = _receive(client)
        if not message:
            client.close()
            return
        pid = os.fork()
        if not pid:
            _become(marshal.loads(message), files)
        for file in files:
            os.close(file)
        self.pids[client] = pid
        _tell(client, b"%d" % pid)
        pidfd = os.pidfd_open(pid)
        self.selector.register(pidfd, selectors.EVENT_READ, lambda: self.ended(client, pidfd))
        self.selector.register(client, selectors.EVENT_READ, lambda: self.gone(client))

    def gone(self, client: socket.socket) -> None:
        if client in self.pids:  # or else its fork ended in the same look
            self.selector.unregister(client)
            _kill(self.pids[client])

    def changed(self, signalled: socket.socket) -> None:
        """Have the clients of stopped forks stop, too."""
        signalled.recv(4096)
        for client, pid in self.pids.items():
            with suppress(ChildProcessError):  # it has ended, and its pidfd says so
                if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG):
                    _tell(client, STOPPED)

    def ended(self, client: socket.socket, pidfd: int) -> None:
        self.selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(self.pids.pop(client), 0)
        if client in self.selector.get_map():
            self.selector.unregister(client)
            _tell(client, b"%d" % os.waitstatus_to_exitcode(status))
        client.close()


def serve_forks_with(modules: Iterable[str], path: Path, owner: int) -> None:
    import_all(modules)
    for each in weakref.finalize._registry:  # of torch's operators: that takes 0.03 seconds at each end
        each.atexit = False
    Server(path, owner).serve()


def name_methods_by_their_frames() -> None:
    """Have torchrun name the methods in its events without reading sources, which takes half a second."""
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    dynamic_rendezvous.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name


def import_all(modules: Iterable[str]) -> None:
    for module in modules:
        importlib.import_module(module)


def _receive(client: socket.socket) -> tuple[bytes, list[int]]:
    room = socket.CMSG_SPACE(MAX_FILES * array.array("i").itemsize)
    message, ancillary, _, _ = client.recvmsg(MAX_MESSAGE_BYTES, room)
    files = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(content)
    return message, list(files)


def _tell(client: socket.socket, message: bytes) -> None:
    with suppress(OSError):  # it may have been killed since the last look
        client.send(message)


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Turn this fork into the process that the client was asked to be; does not return."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    gc.freeze()
    gc.enable()
    _take_files(files, request["files"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    for variable, module in READ_AS_IMPORTED.items():
        if value := os.environ.get(variable):
            setattr(sys.modules[module], variable, value)
    random.seed()
    tempfile.tempdir = None
    sys.stdin, sys.stdout, sys.stderr = _stream(0, "r"), _stream(1, "w"), _stream(2, "w")
    if "-u" in request["flags"] and sys.stdout:
        sys.stdout.reconfigure(write_through=True)
    code = _run(request["arguments"], set(request["flags"]))
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120  # as the interpreter itself ends
    os._exit(code)


def _take_files(files: list[int], numbers: list[int]) -> None:
    """Give files the numbers that they have in the client; close all others."""
    high = [os.dup2(file, 1000 + number) for file, number in zip(files, numbers, strict=True)]
    os.closerange(0, 1000)
    for file, number in zip(high, numbers, strict=True):
        os.dup2(file, number, inheritable=True)
    os.closerange(1000, 2000)


def _stream(number: int, mode: str) -> Any:
    """Open a standard stream as the interpreter does; None where the client has none."""
    try:
        return open(
            number, mode, encoding="utf-8", errors=None if number < 2 else "backslashreplace", closefd=False
        )
    except OSError:
        return None


def _run(arguments: list[str], flags: set[str]) -> int:
    """Run as the interpreter would; return the exit code."""
    try:
        try:
            _run_program(arguments, flags)
            code = 0
        except SystemExit as end:
            code = _code_of(end)
        threading._shutdown()
        atexit._run_exitfuncs()
    except KeyboardInterrupt:
        traceback.print_exc()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        code = 130
    except BaseException:
        traceback.print_exc()
        code = 1
    return code


def _run_program(arguments: list[str], flags: set[str]) -> None:
    option, *rest = arguments
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if "-I" in flags:
        given = []

    def path_after(first: str) -> list[str]:
        return given if flags & {"-I", "-P"} else [first, *given]

    if option == "-m":
        sys.argv, sys.path[:1] = rest, path_after(os.getcwd())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # it was imported before
            _, spec, code = runpy._get_module_details(rest[0])
        sys.argv[0] = spec.origin
        _run_main(code, spec.origin, spec)
    elif option == "-c":
        sys.argv, sys.path[:1] = ["-c", *rest[1:]], path_after("")
        _run_main(compile(rest[0], "<string>", "exec"), None, None)
    elif option == "-":
        sys.argv, sys.path[:1] = arguments, path_after("")
        _run_main(compile(sys.stdin.read(), "<stdin>", "exec"), "<stdin>", None)
    else:
        sys.argv, sys.path[:1] = arguments, path_after(os.path.dirname(os.path.abspath(option)))
        with open(option, "rb") as file:
            _run_main(compile(file.read(), option, "exec"), option, None)


def _run_main(code: Any, file: str | None, spec: Any) -> None:
    """Run code as `__main__`, which multiprocessing and pickle look up by that name."""
    main = type(sys)("__main__")
    main.__dict__.update(__builtins__=__builtins__, __spec__=spec)
    if file:
        main.__file__ = file
    if spec:
        main.__package__ = spec.parent
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _code_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    os.fsync = lambda descriptor: None  # as `tests/conftest.py` has it
    sys.executable = sys.argv[2]  # which modules keep as they are imported: children of forks are forks too
    path, owner = Path(sys.argv[1]), int(sys.argv[3])
    gc.disable()  # imports leave little garbage; forks enable it
    import_all(SHARED)  # before the fork: that takes four seconds of a core, once
    if not os.fork():
        serve_forks_with(LIBRARIES, path.with_name("bare"), owner)
    name_methods_by_their_frames()
    serve_forks_with(WARM, path, owner)
