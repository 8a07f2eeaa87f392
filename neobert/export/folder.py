"""Write a folder that `AutoModel.from_pretrained(FOLDER, trust_remote_code=True)` loads.

It does so where this project is installed and where it is not: the modeling code travels in the folder.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn

from neobert import model as model_package
from neobert.errors import ProjectError
from neobert.export.card import model_card
from neobert.export.weights import WEIGHTS
from neobert.model.configuration_neobert import AUTO_MAP
from neobert.model.pretrained import NeoBERTPreTrainedModel

OF_THIS_PROJECT = ("__init__.py", "build.py")
MODELING_FILES = tuple(
    sorted(
        file.name
        for file in Path(model_package.__file__).parent.glob("*.py")
        if file.name not in OF_THIS_PROJECT
    )
)
"""The files of `neobert/model` that a checkpoint holds; those left out need the rest of the project."""

SETTINGS = "tokenizer_config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    SETTINGS,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)
METADATA = {"format": "pt"}


def write_hf_folder(
    model: NeoBERTPreTrainedModel,
    tokenizer_files: Mapping[str, bytes] | None,
    folder: Path,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write weights, configuration, modeling code, tokenizer files and a model card.

    Args:
        tokenizer_files: what `read_tokenizer_files` returned; None leaves them out.
        weights: a copy of `own_weights(model)` to write in place of what the model holds by now.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = own_weights(model) if weights is None else weights
    written = {name: each.detach().contiguous() for name, each in tensors.items()}
    save_file(written, folder / WEIGHTS, METADATA)
    (folder / "config.json").write_text(portable_config(model), encoding="utf-8")
    source = Path(model_package.__file__).parent
    for name in MODELING_FILES:
        shutil.copyfile(source / name, folder / name)
    for name, content in (tokenizer_files or {}).items():
        (folder / name).write_bytes(content)
    (folder / "README.md").write_text(model_card(model), encoding="utf-8")


def own_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model by name, those that share one matrix under the first name only."""
    names: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    return {name: each for name, each in state.items() if names.setdefault(id(each), name) == name}


def portable_config(model: NeoBERTPreTrainedModel) -> str:
    """Render config.json with every field, the map to the modeling code, and no choice of this machine's."""
    portable = copy.deepcopy(model.config)
    portable.architectures = [type(model).__name__.removeprefix("FSDP")]  # fully_shard renames the class
    portable.dtype = str(model.dtype).removeprefix("torch.")
    portable.attn_backend = "auto"
    portable.kernel_backend = "torch"
    portable.auto_map = dict(AUTO_MAP)
    return str(portable.to_json_string(use_diff=True))


def read_tokenizer_files(source: Path) -> dict[str, bytes]:
    """Read the files of a tokenizer's folder by name, as every checkpoint keeps them.

    A run reads them once, when it starts: the cache that they are in may be removed before its last save.
    Raises `ProjectError` EXP001 where there are none.
    """
    files = {name: (source / name).read_bytes() for name in TOKENIZER_FILES if (source / name).is_file()}
    if not files:
        raise ProjectError(
            "EXP001",
            "There are no tokenizer files in this folder.",
            f"It should hold {TOKENIZER_FILES[0]}.",
            place=str(source),
        )
    if SETTINGS in files:
        files[SETTINGS] = _with_the_class_for_all(files[SETTINGS])
    return files


def _with_the_class_for_all(content: bytes) -> bytes:
    """Call the tokenizer's class by the name that older transformers know too."""
    settings = json.loads(content)
    if settings.get("tokenizer_class") != "TokenizersBackend":
        return content
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    return (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
