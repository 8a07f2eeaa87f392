"""`chat` by its real command: history, a terminal, Ctrl-C, a server, and what it refuses."""

import fcntl
import json
import os
import pty
import select
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from launcher.commands.chat import ServerReplies
from neobert.errors import ProjectError
from neobert.generation.folder import chat_folder
from neobert.generation.request import ReplyEnd, Sampling
from neobert.runfiles.checkpoint.manifest import seal_checkpoint
from tests.refusals import refusal_of

LAUNCHER = ("-m", "launcher")
GREEDY = ("--temperature", "0", "--max-tokens", "6")


def reference(folder: Path, *conversation: tuple[str, str]) -> str:
    """Return what transformers generates, from the whole conversation as the template writes it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "".join(f"<|{role}|>{content}<|end|>" for role, content in conversation) + "<|assistant|>"
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    made = AutoModelForCausalLM.from_pretrained(folder).generate(ids, max_new_tokens=6, do_sample=False)
    return str(tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True))


def run(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *LAUNCHER, *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def shown(text: str) -> str:
    from neobert.printable import printable

    return printable(text, keep="\n\t")


@pytest.mark.usefixtures("warm")
def test_a_piped_chat_keeps_its_history_until_it_is_cleared(chatty):
    """The second question is answered with the first in mind, the third without."""
    lines = "hello\nhow are you\n/help\n/clear\nhow are you\n/exit\nnever asked\n"
    done = run("chat", str(chatty), *GREEDY, "--system", "today", stdin=lines)
    assert done.returncode == 0, done.stderr
    first = reference(chatty, ("system", "today"), ("user", "hello"))
    history = [("system", "today"), ("user", "hello"), ("assistant", first), ("user", "how are you")]
    second, third = reference(chatty, *history), reference(chatty, history[0], history[-1])
    assert second != third
    assert done.stdout == "".join(shown(reply) + "\n" for reply in (first, second, third))
    assert done.stderr.count("the token limit; see --max-tokens") == 3
    assert done.stderr.count("/clear begins a new conversation") == 1


class Screen:
    """A chat on a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self.ours, theirs = pty.openpty()
        self.seen = ""
        environment = os.environ | {"TERM": "xterm", "PYTHONUNBUFFERED": "1"}
        self.child = subprocess.Popen(
            [sys.executable, *LAUNCHER, "chat", *arguments],
            stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(theirs)

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def await_text(self, text: str, since: int = 0) -> None:
        deadline = time.monotonic() + 60
        while text not in self.seen[since:]:
            assert time.monotonic() < deadline, self.seen
            self.read_for(0.2)

    def read_for(self, seconds: float) -> None:
        if select.select([self.ours], [], [], seconds)[0]:
            self.seen += os.read(self.ours, 4096).decode(errors="replace")


def test_on_a_terminal_ctrl_c_ends_the_reply_and_not_the_chat(chatty):
    screen = Screen(str(chatty), "--max-tokens", "100000", "--temperature", "5")
    try:
        screen.await_text("> ")
        assert "/clear begins a new conversation" in screen.seen
        screen.type("hello\n")
        screen.await_text("hello\r\n")
        screen.await_text(" ", screen.seen.index("hello\r\n"))  # words of the reply
        before = len(screen.seen)
        screen.type("\x03")
        screen.await_text("[ended: ", before)  # by Ctrl-C, or by itself if the model was faster
        screen.await_text("\r\n> ", before)
        screen.type("hello\n")
        for _ in range(200):  # wherever the program is: while it reads, writes, or awaits a line
            screen.type("\x03")
            screen.read_for(0.005)
        before = len(screen.seen)
        screen.type("hello\n")
        screen.await_text("hello\r\n", before)
        screen.await_text("\r\n> ", before)
        screen.type("\x04")
        assert screen.child.wait(timeout=60) == 0
    finally:
        screen.child.kill()
        screen.child.wait()
        os.close(screen.ours)


@pytest.mark.usefixtures("warm")
def test_folders_that_cannot_chat_are_refused_in_one_sentence(chatty, tmp_path):
    without = shutil.copytree(chatty, tmp_path / "plain")
    (without / "chat_template.jinja").unlink()
    error = refusal_of(chat_folder, "no-chat-template", "the tokenizer has no chat template", without)
    assert "evaluate generation with a .txt file of prompts" in error.hint, "it refuses messages, too"
    (without / "tokenizer.json").unlink()
    (tmp_path / "prompts.txt").write_text("hello\n", encoding="utf-8")
    done = run("evaluate", "generation", str(without), str(tmp_path / "prompts.txt"))
    assert done.returncode == 1
    assert f"error: {without}: is a folder without a tokenizer that can be loaded [TOK001]" in done.stderr
    assert "Traceback" not in done.stderr
    masked = tmp_path / "masked"
    masked.mkdir()
    (masked / "config.json").write_text('{"architectures": ["BertForMaskedLM"]}', encoding="utf-8")
    done = run("chat", str(masked), stdin="hi\n")
    assert done.returncode == 2
    assert "config.json names BertForMaskedLM" in done.stderr


def test_the_template_of_a_sealed_checkpoint_is_verified(chatty, tmp_path):
    checkpoint = shutil.copytree(chatty, tmp_path / "checkpoint")
    seal_checkpoint(checkpoint, 1, "digest", "2026-01-01T00:00:00+00:00")
    assert chat_folder(checkpoint) == checkpoint
    (checkpoint / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    refusal_of(chat_folder, "CKP007", "has 14 bytes, not 145", checkpoint)


class Stub(BaseHTTPRequestHandler):
    """A server that answers with the number of messages, with an escape sequence in it."""

    seen: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        self._send(b'{"data": [{"id": "one"}]}')

    def do_POST(self) -> None:
        requested = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Stub.seen.append({**requested, "key": self.headers["Authorization"]})
        if requested["messages"][-1]["content"] == "leave":
            self.send_response(307)
            self.send_header("Location", "http://127.0.0.1:9/v1/chat/completions")
            self.end_headers()
            return
        words = [f"{len(requested['messages'])} ", "\x1b[2Jmessages"]
        choices = [{"delta": {"role": "assistant"}}, *({"delta": {"content": word}} for word in words)]
        events = [{"choices": [{**choice, "finish_reason": None}]} for choice in choices]
        events.append({"choices": [{"delta": {}, "finish_reason": "length"}]})
        self._send(b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events))

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    Stub.seen = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Stub) as serving:
        Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()


def test_a_server_is_talked_to_in_openai_s_form_and_its_escapes_are_not_printed(server):
    done = run("chat", server, *GREEDY, stdin="hi\nagain\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 \N{REPLACEMENT CHARACTER}[2Jmessages\n3 \N{REPLACEMENT CHARACTER}[2Jmessages\n"
    first = Stub.seen[0]
    assert (first["model"], first["temperature"], first["max_tokens"], first["key"]) == ("one", 0, 6, None)
    assert [message["role"] for message in Stub.seen[1]["messages"]] == ["user", "assistant", "user"]


def test_a_key_is_sent_only_if_its_variable_is_named(server, monkeypatch):
    with pytest.raises(ProjectError, match="NO_SUCH_KEY is not set"):
        ServerReplies(server, None, "NO_SUCH_KEY", 0)
    monkeypatch.setenv("KEY", "secret")
    with ServerReplies(server, "two", "KEY", 0) as replies:
        *_, end = replies.reply([{"role": "user", "content": "hi"}], Sampling())
        assert end == ReplyEnd(reason="length")
        assert (Stub.seen[0]["key"], Stub.seen[0]["model"]) == ("Bearer secret", "two")
        with pytest.raises(ProjectError, match="the server returned HTTP 307"):
            list(replies.reply([{"role": "user", "content": "leave"}], Sampling()))


def test_a_server_that_is_not_there_is_said_so():
    refusal_of(ServerReplies("http://127.0.0.1:9", None, None, 0).__enter__, "chat", "Connection refused")
