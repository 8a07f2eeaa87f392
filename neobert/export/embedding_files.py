"""Files with which sentence-transformers computes embeddings from a model's hidden states.

Names and keys follow release 2, which later releases and text-embeddings-inference also read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neobert.encoding.prompts import PROMPTS_FILE

POOLING_FOLDER, NORMALIZE_FOLDER = "1_Pooling", "2_Normalize"
MODES = {"cls": "pooling_mode_cls_token", "avg": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens"}


@dataclass(frozen=True, slots=True)
class EmbeddingFiles:
    """Settings that determine how a text becomes a vector.

    Attributes:
        pooling: avg, cls or max.
        width: number of components.
        max_length: longest text in tokens; longer ones are truncated.
        prompts: text before each text, by name, such as query; empty ones are not written.
        normalizes: whether vectors are scaled to unit length.
        default_prompt: name of the prompt for texts that are neither query nor document, or None.
        pools_prompt: whether prompt tokens are pooled like text tokens.
    """

    pooling: str
    width: int
    max_length: int
    prompts: Mapping[str, str] = field(default_factory=dict)
    normalizes: bool = False
    default_prompt: str | None = None
    pools_prompt: bool = True

    def write(self, folder: Path) -> None:
        """Write modules.json, the settings, the prompts and the pooling config into a model folder."""
        modules = [("", "Transformer"), (POOLING_FOLDER, "Pooling")]
        # That folder has no files, and does not exist: no readers need it, and Git has no empty folders.
        modules += [(NORMALIZE_FOLDER, "Normalize")] if self.normalizes else []
        listed = [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(modules)
        ]
        write_json(folder / "modules.json", listed)
        longest = {"max_seq_length": self.max_length, "do_lower_case": False}
        write_json(folder / "sentence_bert_config.json", longest)
        prompts = {name: text for name, text in self.prompts.items() if text}
        default = self.default_prompt if self.default_prompt in prompts else None
        settings = {"prompts": prompts, "default_prompt_name": default, "similarity_fn_name": "cosine"}
        write_json(folder / PROMPTS_FILE, settings)
        self._write_pooling(folder)

    def _write_pooling(self, folder: Path) -> None:
        """Write the config of the pooling module, which text-embeddings-inference reads too."""
        modes: dict[str, object] = {mode: mode == MODES[self.pooling] for mode in MODES.values()}
        if not self.pools_prompt:
            modes["include_prompt"] = False
        (folder / POOLING_FOLDER).mkdir()
        write_json(folder / POOLING_FOLDER / "config.json", {"word_embedding_dimension": self.width} | modes)


def write_json(path: Path, content: Any) -> None:
    """Write content as indented JSON in UTF-8."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
