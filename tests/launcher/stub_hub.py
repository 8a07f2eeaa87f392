"""A model hub on loopback: repositories at commits, with branches that can move."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

LOOK_UP = re.compile(r"/api/models/([\w.-]+/[\w.-]+)(?:/revision/([\w%./-]+))?")
FILE = re.compile(r"/([\w.-]+/[\w.-]+)/resolve/([\w.-]+)/(.+)")


@dataclass
class Hub:
    """Repositories by name and commit.

    Attributes:
        requests: method and path of each request.
        held: name of a file whose content is not sent while it is set.
    """

    commits: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    held: str = ""

    def push(self, name: str, folder: Path, branch: str = "main") -> str:
        """Publish the files of a folder as the newest commit of a branch."""
        files = {file.name: file.read_bytes() for file in folder.iterdir()}
        commit = sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits.setdefault(name, {})[commit] = files
        self.branches[f"{name}@{branch}"] = commit
        return commit

    def reads(self, name: str) -> int:
        """Return how often the content of a file was requested."""
        return sum(each.startswith("GET ") and each.endswith(f"/{name}") for each in self.requests)


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_content=False)

        def do_GET(self) -> None:
            self._answer(with_content=True)

        def _answer(self, *, with_content: bool) -> None:
            path = self.path.partition("?")[0]
            hub.requests.append(f"{self.command} {path}")
            if found := LOOK_UP.fullmatch(path):
                self._look_up(found[1], (found[2] or "main").replace("%2F", "/"))
            elif found := FILE.fullmatch(path):
                self._file(found[1], found[2], found[3], with_content=with_content)
            else:
                self._send(404, b"", {})

        def _look_up(self, name: str, revision: str) -> None:
            if name not in hub.commits:
                self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
                return
            commit = hub.branches.get(f"{name}@{revision}", revision)
            if commit not in hub.commits[name]:
                self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
                return
            files = [{"rfilename": file} for file in hub.commits[name][commit]]
            content = json.dumps({"id": name, "modelId": name, "sha": commit, "siblings": files})
            self._send(200, content.encode(), {"Content-Type": "application/json"})

        def _file(self, name: str, commit: str, file: str, *, with_content: bool) -> None:
            content = hub.commits[name][commit].get(file)
            if content is None:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
                return
            headers = {"ETag": f'"{sha1(content).hexdigest()}"', "X-Repo-Commit": commit}
            while with_content and file == hub.held:
                time.sleep(0.01)
            self._send(200, content if with_content else b"", headers, length=len(content))

        def _send(
            self, code: int, content: bytes, headers: dict[str, str], length: int | None = None
        ) -> None:
            self.send_response(code)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(content) if length is None else length))
            self.end_headers()
            with suppress(OSError):  # the client was killed
                self.wfile.write(content)

    return Handler


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    """Serve a hub; yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
