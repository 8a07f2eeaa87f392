"""Chat templates that a run file names: a file, or a template of this project."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from neobert.errors import ProjectError

MAX_BYTES = 1 << 20
TURNS = """\
{%- set start = bos_token or cls_token or "" %}
{%- set end = eos_token or sep_token %}
{%- if tools %}
{{- start ~ "tools\\n" ~ tools | map("tojson") | join("\\n") ~ end ~ "\\n" }}
{%- endif %}
{%- for message in messages %}
{{- start ~ message.role ~ "\\n" ~ (message.content or "") }}
{%- for call in message.tool_calls or [] %}
{{- ("\\n" if message.content or not loop.first else "") ~ call | tojson }}
{%- endfor %}
{{- end ~ "\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- start ~ "assistant\\n" }}
{%- endif %}
"""
"""Template for tokenizers without one: the role on a line, the content, and the token that ends texts.

Tools are a message before the first, and calls of tools follow the content, each as JSON on a line.
"""
OWN = {"turns": TURNS}


def read_template(name: str) -> str:
    """Return the template that `tokenizer.chat_template` names.

    Raises `ProjectError` TOK001 if its file cannot be read, is not UTF-8 or is larger than 1 MiB.
    """
    if name in OWN:
        return OWN[name]
    file = Path(os.path.expanduser(name))
    try:
        with file.open("rb") as handle:
            content = handle.read(MAX_BYTES + 1)
        if len(content) <= MAX_BYTES:
            return content.decode()
        reason = f"is larger than {MAX_BYTES >> 20} MiB"
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        reason = "is not UTF-8"
    hint = f"set tokenizer.chat_template to a Jinja file, or to {', '.join(OWN)}"
    raise ProjectError("TOK001", f"the chat template {reason}", hint, str(file))


def read_folder_template(folder: Path) -> str | None:
    """Return the chat template in a model folder; None if there is none, or several named ones."""
    with suppress(OSError, ValueError, AttributeError):
        file = folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        template = json.loads((folder / "tokenizer_config.json").read_bytes()).get("chat_template")
        return template if isinstance(template, str) else None
    return None
