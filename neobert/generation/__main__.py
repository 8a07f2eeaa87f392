"""`python -m neobert.generation REQUEST.json`: replies to the conversations on standard input.

Each input line is a JSON object with the messages and settings of one reply. The output is JSON lines:
`ready` once, then for each reply its text in pieces, and `ending` or `error`. SIGINT ends a reply.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from neobert.errors import ProjectError
from neobert.generation.folder import chat_folder
from neobert.generation.request import Sampling
from neobert.json_program import serve


class Interrupt:
    """Ctrl-C flag of the current reply. A handler that interrupts Event.set would wait for its lock."""

    is_set = False

    def set(self, *_: object) -> None:
        """Set the flag. Called as the handler of SIGINT."""
        self.is_set = True


def chat(request: dict[str, Any], answers: IO[str]) -> dict[str, Any]:
    """Reply to each line of standard input until it ends; the replies are written to `answers`.

    The error of a reply is written too, and the next line is read. Raises `ProjectError` if the model cannot
    chat.
    """

    def send(**content: Any) -> None:
        print(json.dumps(content), file=answers, flush=True)

    folder = chat_folder(Path(request["folder"]))
    from neobert.generation.model import load_generator  # imports torch, which takes seconds

    generator = load_generator(folder, request["device"], request["dtype"], request["seed"])
    interrupt = Interrupt()
    # An exception could be raised within a line of an answer, so Ctrl-C is checked after each token.
    signal.signal(signal.SIGINT, interrupt.set)
    send(ready=True)
    for line in sys.stdin:
        turn = json.loads(line)
        interrupt.is_set = False
        try:
            prompt = generator.chat_prompt(turn["messages"])
            sampling = Sampling(**turn["sampling"])
            end = generator.generate(prompt, sampling, lambda text: send(text=text), lambda: interrupt.is_set)
            send(ending=asdict(end))
        except ProjectError as error:
            send(error={"message": error.message, "hint": error.hint})
    return {}


if __name__ == "__main__":
    answers = sys.stdout  # `serve` gives print to standard error, because libraries print
    sys.exit(serve(lambda request: chat(request, answers), sys.argv[1:]))
