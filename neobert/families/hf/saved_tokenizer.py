"""Tokenizer of a checkpoint as transformers reads it. Imports torch.

For some types of models, transformers ignores the class that a saved tokenizer names, and builds the one of
the type from its vocabulary: text may then be split differently, without a warning.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import AutoTokenizer
from transformers.models.auto import tokenization_auto

from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.errors import ProjectError
from neobert.families.hf.quiet import suppress_loading_output
from neobert.families.hf.settings import CODE
from neobert.runfiles.run_dir import CONFIG

OVERRULED = frozenset(getattr(tokenization_auto, "MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS", ()))
"""Types of models whose tokenizer class transformers decides."""
SAMPLE = "It's 1,234.5 miles:\n\n  \tif x != y_z: naïve Café (“quoted”) — 東京 don't end."


def refuse_other_tokenizer(tokenizer: TokenizerBundle, model_type: str) -> None:
    """Raise `ProjectError` MOD006 if transformers would read the saved tokenizer as another one."""
    if model_type not in OVERRULED or not isinstance(tokenizer, TokenizerBundle):  # ids alone, of probes
        return
    own = tokenizer.tokenizer
    with TemporaryDirectory(prefix="neobert-tokenizer-") as place, suppress_loading_output():
        folder = Path(place)
        tokenizer.save(folder)
        (folder / CONFIG).write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
        read = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if read(SAMPLE).input_ids != own(SAMPLE).input_ids:
        message = f"transformers reads the tokenizer of every {model_type} as a {type(read).__name__}, which "
        message += "splits text differently: the saved model would get other tokens"
        hint = f"set tokenizer.path to the tokenizer of a {model_type}, or model.architecture to llama"
        raise ProjectError(CODE, message, hint, "tokenizer")
