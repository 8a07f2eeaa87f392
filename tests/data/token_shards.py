"""Files of token ids as datatrove writes them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def write_shard(path: Path, documents: Sequence[Sequence[int]], *, dtype: str = "<u2") -> Path:
    """Write documents of token ids in the form of datatrove 0.10."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ends = np.cumsum([len(ids) for ids in documents])
    path.write_bytes(np.array([each for ids in documents for each in ids], dtype).tobytes())
    path.with_name(f"{path.name}.index").write_bytes(ends.astype("<u8").tobytes())
    metadata = f"some/tokenizer.json|{np.dtype(dtype).itemsize}\n{ends[-1]}\n{ends[-1]} T"
    path.with_name(f"{path.name}.metadata").write_text(metadata)
    return path
