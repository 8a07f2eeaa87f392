"""Stand-in for the interpreter: sends its arguments to the server of warm interpreters, ends as the fork.

Tests write it into a file of its own, after a line with the interpreter and one with the sockets of the
server. It stops as the fork does, too. Options other than `-I`, `-P`, `-u`, `-m`, `-c` and `-` are for a real
interpreter, and are run by one. It imports little: hundreds of them start in a test run.
"""

# ruff: noqa: F821, SIM105  REAL, SOCKET and BARE stand above, and contextlib takes time
import _socket as socket
import array
import marshal
import os
import signal
import sys

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


def main() -> None:
    arguments, flags = sys.argv[1:], set()
    while arguments[:1] in (["-I"], ["-P"], ["-u"]):
        flags.add(arguments.pop(0))
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-m", "-c", "-")):
        os.execv(REAL, [REAL, *sys.argv[1:]])
    for number in FORWARDED:
        signal.signal(number, remember)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(BARE if "-I" in flags else SOCKET)
    files = [int(name) for name in os.listdir("/proc/self/fd")]
    files = sorted(number for number in files if number != server.fileno() and is_open(number))
    request = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "flags": sorted(flags),
        "files": files,
    }
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
    server.sendmsg([marshal.dumps(request)], [rights] if files else [])
    pid = int(server.recv(32))
    forward_to(pid)
    while (end := server.recv(32)) == b"stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    end_as(int(end))


early: list[int] = []


def remember(number: int, _: object) -> None:
    early.append(number)


def forward_to(pid: int) -> None:
    def forward(number: int, _: object) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    for number in FORWARDED:
        signal.signal(number, forward)
    for number in early:
        forward(number, None)


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def end_as(code: int) -> None:
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
