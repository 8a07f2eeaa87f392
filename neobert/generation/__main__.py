"""`python -m neobert.generation REQUEST.json`: replies to the conversations on standard input.

Each line is a JSON object with the messages and the settings of one reply. Lines of JSON on standard output
answer it: `ready` once, then for each reply its text in pieces, and `ending` or `error`. SIGINT ends a reply.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from neobert.errors import ProjectError
from neobert.generation.folder import chat_folder
from neobert.generation.request import ReplyEnd, Sampling
from neobert.json_program import serve

if TYPE_CHECKING:
    from neobert.generation.model import Generator


def chat(request: dict[str, Any], answers: IO[str]) -> dict[str, Any]:
    """Answer lines of standard input until it ends. Raises `ProjectError` if the model cannot chat."""

    def send(**content: Any) -> None:
        print(json.dumps(content), file=answers, flush=True)

    folder = chat_folder(Path(request["folder"]))
    from neobert.generation.model import load_generator  # imports torch, which takes seconds

    generator = load_generator(folder, request["device"], request["dtype"], request["seed"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # between replies, Ctrl-C concerns the terminal only
    send(ready=True)
    for line in sys.stdin:
        turn = json.loads(line)
        try:
            send(ending=asdict(reply(generator, turn["messages"], Sampling(**turn["sampling"]), send)))
        except ProjectError as error:
            send(error={"message": error.message, "hint": error.hint})
    return {}


def reply(generator: Generator, messages: list[dict[str, str]], sampling: Sampling, send: Any) -> ReplyEnd:
    """Generate one reply, which SIGINT ends early."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return generator.generate(generator.chat_prompt(messages), sampling, lambda text: send(text=text))
    except KeyboardInterrupt:
        return ReplyEnd(reason="interrupted")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    answers = sys.stdout  # `serve` gives print to standard error, because libraries print
    sys.exit(serve(lambda request: chat(request, answers), sys.argv[1:]))
