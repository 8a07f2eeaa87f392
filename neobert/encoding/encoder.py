"""Embeddings of texts, computed in packed rows.

Shapes: N texts, T tokens and K texts of a packed row, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from neobert.encoding.counts import TextCounts
from neobert.encoding.declared import read_declared_settings
from neobert.encoding.finite import require_finite
from neobert.encoding.freed_memory import return_freed_memory
from neobert.encoding.model import InferenceModel, load_model
from neobert.encoding.packed_rows import Tokens, group_into_rows, pack
from neobert.encoding.placement import resolve_placement
from neobert.encoding.prompts import Prompts
from neobert.encoding.tokens import TextTokenizer
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.model.heads import pool
from neobert.progress import OnProgress, ignore_progress
from neobert.runfiles.model_folder import CODE, model_folder

Embeddings = NDArray[np.float32]

TEXTS_PER_CHUNK = 4096
"""Number of texts that are tokenized and sorted by length together."""
TOKENS_PER_RUN = {"cuda": 32_768, "cpu": 4_096}


class Encoder:
    """Encodes texts with a model folder.

    ```python
    encoder = Encoder.load("runs/demo", pooling="avg")
    embeddings = encoder.encode(["a text", "another"])  # float32 [2, D]
    ```

    Attributes:
        folder: the model folder; empty for a model that was not loaded from one.
        prompts: prompts that the folder declares.
        prompt: prompt before each text, unless `encode` gets another one.
        counts: number of texts, tokens and truncated texts so far.
    """

    def __init__(
        self,
        model: InferenceModel,
        tokenizer: TextTokenizer,
        pooling: str,
        *,
        normalizes: bool = False,
        tokens_per_run: int | None = None,
        folder: str = "",
        prompts: Prompts | None = None,
        prompt: str | None = None,
        pools_prompt: bool = True,
    ) -> None:
        self.model = model
        self.folder = folder
        self.tokenizer = tokenizer
        self.pooling = pooling
        self.normalizes = normalizes
        self.tokens_per_run = tokens_per_run or TOKENS_PER_RUN[model.device.type]
        self.prompts = prompts or Prompts()
        self.prompt = self.prompts.text_prompt if prompt is None else prompt
        self._pools_prompt = pools_prompt
        self.counts = TextCounts()

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        tokens_per_run: int | None = None,
        prompt: str | None = None,
        is_verified: bool = False,
    ) -> Encoder:
        """Load an exported folder, a checkpoint, or the best or newest one of a run directory.

        Args:
            pooling: "avg", "cls" or "max"; None: the folder's setting.
            normalize: scale embeddings to unit length; None: the folder's setting.
            max_length: tokens to which texts are truncated, special tokens included; None: the folder's
                setting, else the model's limit.
            device: None: the first GPU, else the CPU.
            dtype: "bf16" or "fp32"; None: bf16 on a GPU, fp32 on the CPU.
            tokens_per_run: tokens per forward pass; None: 32,768 on a GPU, 4,096 on the CPU.
            prompt: text before each text; None: the folder's default prompt, if it has one.
            is_verified: whether `folder` is the result of `model_folder`, whose files are not hashed again.

        Raises `ProjectError` for an unusable folder, or if the folder declares no pooling and none is given.
        """
        path = Path(folder) if is_verified else model_folder(Path(folder))
        declared = read_declared_settings(path)
        pooled = declared.resolve_pooling(pooling, path)
        model = load_model(path, *resolve_placement(device, dtype))
        if max_length is not None and max_length > model.max_length:
            message = f"max_length {max_length} exceeds the {model.max_length} positions of the model"
            raise ProjectError(
                CODE, message, f"set max_length to {model.max_length} or less", str(path), EXIT_USAGE
            )
        length = max_length or min(declared.max_length or model.max_length, model.max_length)
        return cls(
            model,
            TextTokenizer.load(path, length, model.num_rows),
            pooled,
            normalizes=declared.normalizes if normalize is None else normalize,
            tokens_per_run=tokens_per_run,
            folder=str(path),
            prompts=declared.prompts,
            prompt=prompt,
            pools_prompt=declared.pools_prompt,
        )

    def encode(
        self, texts: Sequence[str], on_progress: OnProgress = ignore_progress, *, prompt: str | None = None
    ) -> Embeddings:
        """Return the embeddings [N, D] of texts, fp32, in their order.

        Args:
            on_progress: called with the number of texts of each packed row after it was queued.
            prompt: text before each text; None: the encoder's `prompt`.

        Raises `TypeError` unless `texts` is a sequence of strings; a single string is rejected. Raises
        `ProjectError` if an embedding is NaN or infinite, or if the prompt leaves no room for a text.
        """
        _require_texts(texts)
        prompt = self.prompt if prompt is None else prompt
        unpooled = self._num_unpooled_tokens(prompt)
        embeddings = np.empty((len(texts), self.model.hidden_size), np.float32)
        waiting: tuple[NDArray[np.int64], Tensor] | None = None
        done = 0
        for sequences in self._tokenize_chunks(texts, prompt):
            started = self._queue_chunk(sequences, unpooled, on_progress)
            # A chunk is read back while the device computes the next one.
            if waiting is not None:
                embeddings[waiting[0]] = waiting[1].cpu().numpy()
            waiting = (started[0] + done, started[1])
            done += len(sequences)
        if waiting is not None:
            embeddings[waiting[0]] = waiting[1].cpu().numpy()
        require_finite(embeddings, "embeddings", self.folder)
        return embeddings

    def _num_unpooled_tokens(self, prompt: str) -> int:
        """Return the number of tokens before each text that are not pooled: the tokens of an excluded prompt.

        Raises `ProjectError` if the prompt leaves no room for a text.
        """
        if not prompt:
            return 0
        (tokens,), _ = self.tokenizer.tokenize([prompt])
        if len(tokens) >= self.tokenizer.max_length:
            message = f"the prompt leaves no room for a text (limit {self.tokenizer.max_length:,} tokens)"
            raise ProjectError(CODE, message, "pass a shorter --prompt-text", self.folder, EXIT_USAGE)
        return 0 if self._pools_prompt else len(tokens) - len(self.tokenizer.bundle.framing.end)

    def _tokenize_chunks(self, texts: Sequence[str], prompt: str) -> Iterator[list[Tokens]]:
        """Yield the token ids of each chunk, while a thread tokenizes the next chunk."""
        starts = range(0, len(texts), TEXTS_PER_CHUNK)
        chunks = [[prompt + text for text in texts[start : start + TEXTS_PER_CHUNK]] for start in starts]
        with ThreadPoolExecutor(1) as thread:
            ahead = [thread.submit(self.tokenizer.tokenize, chunk) for chunk in chunks[:1]]
            for following in [*chunks[1:], None]:
                if not ahead:
                    return
                sequences, counts = ahead.pop().result()
                if following is not None:
                    ahead.append(thread.submit(self.tokenizer.tokenize, following))
                self.counts.add(counts)
                yield sequences

    def _queue_chunk(
        self, sequences: Sequence[Tokens], unpooled: int, on_progress: OnProgress
    ) -> tuple[NDArray[np.int64], Tensor]:
        """Queue a chunk; return the text index of each embedding [n], and the embeddings [n, D]."""
        order: list[NDArray[np.int64]] = []
        parts: list[Tensor] = []
        for indices in group_into_rows([len(each) for each in sequences], self.tokens_per_run):
            order.append(indices)
            parts.append(self._embed_run([sequences[index] for index in indices], unpooled))
            on_progress(len(indices))
            return_freed_memory(self.model.device)
        return np.concatenate(order), torch.cat(parts)

    @torch.no_grad()
    def _embed_run(self, sequences: Sequence[Tokens], unpooled: int) -> Tensor:
        """Embed the texts of a packed row: fp32 [K, D], without the first `unpooled` tokens of each text."""
        packed = pack(sequences, self.tokenizer.bundle.filler_id, self.model.length_multiple).to(
            self.model.device
        )
        hidden = self.model.hidden_states(packed).to(torch.float32)
        bounds = packed.cu_seqlens
        if unpooled:
            hidden = hidden[packed.position_ids >= unpooled]
            bounds = F.pad((bounds.diff() - unpooled).clamp(min=0).cumsum(0, dtype=torch.int32), (1, 0))
        pooled = pool(hidden, None, self.pooling, bounds)[: len(sequences)]
        return F.normalize(pooled, dim=-1) if self.normalizes else pooled


def _require_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise TypeError("texts is a string, expected a list of strings: pass [text]")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts[{index}] is {type(text).__name__}, not a string")
