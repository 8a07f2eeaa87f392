"""Folders of causal models, recognized by their files without importing torch."""

from __future__ import annotations

from pathlib import Path

from neobert.errors import EXIT_USAGE, ProjectError
from neobert.printable import printable
from neobert.runfiles.model_folder import CODE, model_folder, read_json

HEAD, HEADS = "ForCausalLM", ("ForCausalLM", "GPT2LMHeadModel")
"""Class-name suffixes of causal models; GPT-2's predates the convention."""
TEMPLATE_FILE = "chat_template.jinja"


def causal_folder(path: Path) -> Path:
    """Return the folder of a causal model: `path`, or the best or newest checkpoint of a run directory.

    Raises `ProjectError` for another kind of model, or files that differ from their manifest.
    """
    folder = model_folder(path)
    names = read_json(folder / "config.json").get("architectures")
    names = names if isinstance(names, list) else []
    if not any(str(name).endswith(HEADS) for name in names):
        named = printable(", ".join(map(str, names))) or "no architecture"
        message = f"the model cannot generate text: config.json names {named}, not a class ending in {HEAD}"
        hint = "pass a causal model; for labels, answers and masked words, use neobert-launch predict"
        raise ProjectError(CODE, message, hint, str(folder), EXIT_USAGE)
    return folder


def chat_folder(path: Path) -> Path:
    """Return the folder of a causal model with a chat template. Raises like `causal_folder`."""
    folder = causal_folder(path)
    settings = read_json(folder / "tokenizer_config.json", missing_ok=True)
    if not (settings.get("chat_template") or (folder / TEMPLATE_FILE).is_file()):
        hint = (
            "to continue text, use neobert-launch evaluate generation with a .txt file of prompts; "
            f"to chat, train on conversations, or save the template as {TEMPLATE_FILE} in the folder"
        )
        message = "the tokenizer has no chat template"
        raise ProjectError("no-chat-template", message, hint, str(folder), EXIT_USAGE)
    return folder
