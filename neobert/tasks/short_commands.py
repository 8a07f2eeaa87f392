"""Commands that train as `train` does, and the tasks that each of them trains. `--help` reads them."""

from __future__ import annotations

from typing import NamedTuple


class ShortCommand(NamedTuple):
    """A command that trains.

    Attributes:
        tasks: names of the tasks that it trains. A run file that states none gets the first one that fits the
            model's attention (bidirectional or causal), or the first one if none fits.
        help: description of the command.
        example: arguments after its name.
    """

    tasks: tuple[str, ...]
    help: str
    example: str


SHORT_COMMANDS = {
    "pretrain": ShortCommand(
        ("pretrain", "causal"),
        "Train a model on text, with the options of `train`.\n\n"
        "If the run file states no task, an encoder learns masked words and a causal model the next tokens.",
        "--from answerdotai/ModernBERT-base --text notes/",
    ),
    "sft": ShortCommand(
        ("sft",),
        "Fine-tune a causal model on conversations, with the options of `train`.",
        "--from Qwen/Qwen2.5-0.5B --text conversations.jsonl",
    ),
}
