"""Write a folder that `AutoModel.from_pretrained(FOLDER, trust_remote_code=True)` loads.

It does so where this project is installed and where it is not: the modeling code travels in the folder.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers.utils import logging

from neobert import model as model_package
from neobert.errors import ProjectError
from neobert.export.card import model_card
from neobert.model.configuration_neobert import NeoBERTConfig
from neobert.model.pretrained import NeoBERTPreTrainedModel

MODELING_FILES = (
    "attention.py",
    "backends.py",
    "configuration_neobert.py",
    "layers.py",
    "modeling_neobert.py",
    "pooling.py",
    "pretrained.py",
    "rotary.py",
)
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)
AUTO_MAP = {
    "AutoConfig": "configuration_neobert.NeoBERTConfig",
    "AutoModel": "modeling_neobert.NeoBERT",
    "AutoModelForMaskedLM": "modeling_neobert.NeoBERTLMHead",
    "AutoModelForSequenceClassification": "modeling_neobert.NeoBERTForSequenceClassification",
}


def write_hf_folder(model: NeoBERTPreTrainedModel, tokenizer_dir: Path | None, folder: Path) -> None:
    """Write weights, configuration, modeling code, tokenizer files and a model card.

    Args:
        tokenizer_dir: folder that holds the tokenizer's files; None leaves them out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _without_progress_bars():
        model.save_pretrained(folder)
    (folder / "config.json").write_text(portable_config(model.config), encoding="utf-8")
    source = Path(model_package.__file__).parent
    for name in MODELING_FILES:
        shutil.copyfile(source / name, folder / name)
    if tokenizer_dir is not None:
        _copy_tokenizer(tokenizer_dir, folder)
    (folder / "README.md").write_text(model_card(model), encoding="utf-8")


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing over the run's own progress."""
    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()


def portable_config(config: NeoBERTConfig) -> str:
    """Render config.json with every field, the map to the modeling code, and no choice of this machine's."""
    portable = copy.deepcopy(config)
    portable.attn_backend = "auto"
    portable.kernel_backend = "torch"
    portable.auto_map = dict(AUTO_MAP)
    return str(portable.to_json_string(use_diff=True))


def _copy_tokenizer(source: Path, folder: Path) -> None:
    names = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    if not names:
        raise ProjectError(
            "EXP001",
            "There are no tokenizer files in this folder.",
            f"It should hold {TOKENIZER_FILES[0]}.",
            place=str(source),
        )
    for name in names:
        shutil.copyfile(source / name, folder / name)
    if "tokenizer_config.json" in names:
        _name_the_class_for_all(folder / "tokenizer_config.json")


def _name_the_class_for_all(path: Path) -> None:
    """Call the tokenizer's class by the name that older transformers know too."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
