"""Causal models that generate text, loaded from a folder without running its code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TextStreamer

from neobert.config.schema import TokenizerConfig
from neobert.data.tokenize.tokenizer_files import tokenizer_from_path
from neobert.encoding.placement import resolve_placement
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.families.hf.build import WHOLE_MODEL, read_model, refuse_missing_weights
from neobert.generation.request import Message, Reason, ReplyEnd, Sampling
from neobert.printable import printable


class _TextStreamer(TextStreamer):  # type: ignore[misc]
    """Streamer that passes text on as soon as later tokens cannot change it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, on_text: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.on_text = on_text

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:  # noqa: ARG002
        if text:
            self.on_text(text)


UNCHECKED = {"verbose": False}
"""Tokenizer arguments that avoid a warning about prompts longer than the tokenizer's own limit."""


@dataclass(frozen=True, slots=True)
class Generator:
    """A causal model and its tokenizer, without gradients."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def max_length(self) -> int:
        """Maximum number of tokens in prompt and reply together."""
        return int(
            getattr(self.model.config, "max_position_embeddings", 0) or self.tokenizer.model_max_length
        )

    def chat_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens before the reply to a conversation. Raises `ProjectError` if templating fails."""
        try:
            encoded = self.tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, return_dict=True, tokenizer_kwargs=UNCHECKED
            )
        except Exception as error:  # a template may raise any exception, for example for a system message
            message = f"the chat template refuses the conversation: {printable(str(error))}"
            hint = "change the messages as the template requires, such as to begin with a user's message"
            raise ProjectError("chat-template", message, hint, exit_code=EXIT_USAGE) from error
        return [int(token) for token in encoded["input_ids"]]

    def text_prompt(self, text: str) -> list[int]:
        """Return the tokens of a text to continue, without the token that ends a text."""
        ids: list[int] = self.tokenizer(text, **UNCHECKED)["input_ids"]
        # A byte-pair tokenizer that ends each text would make the model begin a new text.
        return ids[:-1] if ids and ids[-1] == self.tokenizer.eos_token_id else ids

    @torch.no_grad()
    def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        on_text: Callable[[str], None],
        is_interrupted: Callable[[], bool] = lambda: False,
    ) -> ReplyEnd:
        """Generate a reply, and pass its text to `on_text` in pieces. Stops early if `is_interrupted()`.

        Returns the number of tokens, and why the reply ended.
        Raises `ProjectError` if no token fits after the prompt.
        """
        room = self.max_length - len(prompt)
        if room < 1:
            message = f"the prompt has {len(prompt):,} tokens (limit {self.max_length - 1:,})"
            raise ProjectError("prompt-too-long", message, "start a new conversation, or shorten the prompt")
        ids = torch.tensor([list(prompt)], device=self.model.device)
        made = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=min(sampling.max_tokens, room),
            streamer=_TextStreamer(self.tokenizer, on_text),
            stopping_criteria=[lambda ids, _: torch.full_like(ids[:, 0], is_interrupted(), dtype=torch.bool)],
            pad_token_id=self.tokenizer.pad_token_id or 0,
            **_sampling_options(sampling),
        )
        new = made[0, len(prompt) :].tolist()
        if new and new[-1] in self._stop_token_ids():
            reason: Reason = "stop"
        else:
            reason = "interrupted" if is_interrupted() else "length"
        return ReplyEnd(reason=reason, tokens=len(new))

    def _stop_token_ids(self) -> set[int]:
        ends = self.model.generation_config.eos_token_id
        return {ends} if isinstance(ends, int) else set(ends or ())


def _sampling_options(sampling: Sampling) -> dict[str, Any]:
    if not sampling.temperature:  # the folder's own settings of sampling would be warned of
        return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    return {
        "do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0
    }  # fmt: skip


def load_generator(folder: Path, device: str | None, dtype: str | None, seed: int = 0) -> Generator:
    """Load the model of a `causal_folder`, and seed the sampling.

    If `device` or `dtype` is None, `resolve_placement` chooses it. Raises `ProjectError` for missing weights,
    and for a missing or damaged tokenizer.
    """
    torch.manual_seed(seed)
    tokenizer = tokenizer_from_path(folder, TokenizerConfig())
    where, computed_in = resolve_placement(device, dtype)
    model, absent, _ = read_model("AutoModelForCausalLM", folder, WHOLE_MODEL)
    refuse_missing_weights(absent, folder, "pass a complete checkpoint")
    if model.generation_config.eos_token_id is None:
        model.generation_config.eos_token_id = tokenizer.eos_token_id
    return Generator(model.to(where, computed_in).eval(), tokenizer)
