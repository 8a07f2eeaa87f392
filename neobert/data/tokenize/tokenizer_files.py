"""Reading of tokenizers: a folder, a tokenizer.json, or a name on the Hugging Face Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from neobert.config.schema import TokenizerConfig
from neobert.data.sources import hub
from neobert.errors import ProjectError, first_line

GENERAL_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Names that versions of transformers write for `PreTrainedTokenizerFast`."""


def tokenizer_from_path(path: Path, config: TokenizerConfig) -> Any:
    """Read the tokenizer of a folder or of a tokenizer.json. Raises TOK001."""
    if not path.exists():
        raise unreadable_tokenizer_error(
            str(path), "does not exist", "set tokenizer.path to a folder or a tokenizer.json"
        )
    file = path / "tokenizer.json" if path.is_dir() else path
    if path.is_dir() and (not file.exists() or (path / "tokenizer_config.json").exists()):
        return _from_pretrained(str(path), config, "copy the tokenizer again, or use another one")
    return tokenizer_from_file(file)


def tokenizer_from_file(file: Path) -> PreTrainedTokenizerFast:
    """Read a tokenizer.json alone. Raises TOK001."""
    try:
        backend = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise unreadable_tokenizer_error(
            str(file), f"is not a tokenizer: {error}", "set tokenizer.path to a folder with a tokenizer.json"
        ) from error
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def tokenizer_from_hub(name: str, config: TokenizerConfig) -> Any:
    """Load by name; without a connection, from the local cache and without retries. Raises TOK001."""
    is_cut_off = not Path(name).is_dir() and hub.is_unreachable()
    no_connection = "no connection to the Hub: set tokenizer.path to a folder"
    hint = no_connection if is_cut_off else "check tokenizer.name and tokenizer.revision"
    with hub.suppress_logs():
        return _from_pretrained(name, config, hint, local_files_only=is_cut_off)


def _from_pretrained(name: str, config: TokenizerConfig, hint: str, **options: bool) -> Any:
    loader: Any = PreTrainedTokenizerFast
    if not _has_general_class(Path(name)):
        from transformers import AutoTokenizer  # imports torch, which other tokenizers do without

        loader = AutoTokenizer
    try:
        # A config.json of a model that is not transformers' own, such as a checkpoint here, draws a warning.
        with hub.suppress_logs("transformers.configuration_utils"):
            return loader.from_pretrained(
                name, revision=config.revision, trust_remote_code=config.trust_remote_code, **options
            )
    except Exception as error:  # every kind: a broken file raises plain Exception
        raise _load_error(name, error, hint) from error


def _has_general_class(folder: Path) -> bool:
    """Return whether a folder without a model has a tokenizer of the general class, like a trained one.

    AutoTokenizer loads it as `PreTrainedTokenizerFast` too, after seconds of imports.
    """
    if (folder / "config.json").exists():
        return False
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_bytes())
        return settings.get("tokenizer_class") in GENERAL_CLASSES and "auto_map" not in settings
    except (OSError, ValueError, AttributeError):
        return False


def _load_error(name: str, error: Exception, hint: str) -> ProjectError:
    """Return TOK001 for a tokenizer that transformers failed to load.

    For a folder without a tokenizer, the message states that; transformers reports a failed conversion.
    """
    folder = Path(name)
    if folder.is_dir() and not (folder / "tokenizer.json").exists():
        hint = "use a folder with a tokenizer.json; `neobert-launch tokenizer train` writes one"
        return unreadable_tokenizer_error(name, "is a folder without a tokenizer that can be loaded", hint)
    return unreadable_tokenizer_error(name, f"cannot be loaded: {first_line(error)}", hint)


def unreadable_tokenizer_error(location: str, message: str, hint: str) -> ProjectError:
    """Return TOK001 for a tokenizer that cannot be read."""
    return ProjectError("TOK001", message, hint, location)
