"""Small chat templates, one for each behaviour of stock templates, and a tokenizer with their tokens."""

from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from neobert.tasks.sft.rendering import Request, Template
from neobert.tasks.sft.template import ChatTemplate

START, END, EOS = "<|start|>", "<|end|>", "<|eos|>"
SPECIAL = (START, END, EOS)
_ROLE = "{{ '<|start|>' ~ m.role ~ '\\n' }}"
_PROMPT = "{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}"


def of_messages(body: str, prompt: str = _PROMPT) -> str:
    """Return a template that writes `body` for each message m."""
    return f"{{% for m in messages %}}{body}{{% endfor %}}{prompt}"


PLAIN = of_messages(_ROLE + "{{ m.content ~ '<|end|>\\n' }}")
TRIMMED = of_messages(_ROLE + "{{ m.content | trim ~ '<|end|>\\n' }}")
WITHOUT_HEADERS = of_messages("{{ m.content ~ '<|end|>' }}", "")
ENDS_WITH_EOS = PLAIN + "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"
"""Writes the eos token after a conversation that is complete."""
EXACT = {
    "plain": PLAIN,
    "trimmed": TRIMMED,
    "without headers": WITHOUT_HEADERS,
    "ends with eos": ENDS_WITH_EOS,
}
REWRITTEN = of_messages(
    _ROLE + "{% if loop.last and m.role == 'assistant' %}{{ '<think>\\n\\n</think>\\n' }}{% endif %}"
    "{{ m.content ~ '<|end|>\\n' }}"
)
OTHER_STOP = of_messages(
    _ROLE + "{{ m.content ~ ('<|eos|>' if loop.last and m.role == 'assistant' else '<|end|>') ~ '\\n' }}"
)
OPENS_THINK = of_messages(
    _ROLE + "{{ m.content ~ '<|end|>\\n' }}",
    "{% if add_generation_prompt %}{{ '<|start|>assistant\\n<think>\\n' }}{% endif %}",
)
DROPPED = of_messages(_ROLE + "{{ '' if m.role == 'assistant' else m.content }}{{ '<|end|>\\n' }}")
PARTS = of_messages(_ROLE + "{% for part in m.content %}{{ part.text }}{% endfor %}{{ '<|end|>\\n' }}")
"""Reads a list of text parts: a string has no parts, so that its content is lost."""
REPR = of_messages(_ROLE + "{{ m }}{{ '<|end|>\\n' }}")
NO_PROMPT = of_messages(_ROLE + "{{ m.content ~ '<|end|>\\n' }}", "")
NO_STOP = of_messages(_ROLE + "{{ m.content ~ '\\n' }}")
MARKS = of_messages(
    _ROLE + "{% if m.role == 'assistant' %}{% generation %}{{ m.content ~ '<|end|>' }}{% endgeneration %}"
    "{% else %}{{ m.content ~ '<|end|>' }}{% endif %}{{ '\\n' }}"
)
MARKED_HEADER = of_messages(
    "{% if m.role == 'assistant' %}{% generation %}"
    + _ROLE
    + "{{ m.content ~ '<|end|>' }}{% endgeneration %}"
    "{% else %}" + _ROLE + "{{ m.content ~ '<|end|>' }}{% endif %}{{ '\\n' }}"
)
CLOCK = "{{ strftime_now('%Y-%m-%d') ~ '\\n' }}" + PLAIN
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}" + (
    "{% endfor %}" * 3
)


def renderer(template: str, *, date: str | None = "2024-07-26") -> Template:
    """Return a template to render with in this process."""
    return Template(Request(template, {"eos_token": EOS}, SPECIAL, date, "auto", "all", 10.0))


def chat_template(template: str, **changes: Any) -> ChatTemplate:
    """Return a template to render with in a child process."""
    given: dict[str, Any] = {"date": "2024-07-26", "supervise": "auto", "turns": "all"}
    return ChatTemplate(template, (("eos_token", EOS),), SPECIAL, **(given | changes))


def talk(*contents: str) -> list[dict[str, Any]]:
    """Return messages of a user and of the assistant in turn."""
    return [
        {"role": "user" if at % 2 == 0 else "assistant", "content": each} for at, each in enumerate(contents)
    ]


@cache
def bytes_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are bytes, and the control tokens of the templates."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: at for at, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=EOS)
    tokenizer.add_special_tokens({"additional_special_tokens": [START, END]})
    return tokenizer
