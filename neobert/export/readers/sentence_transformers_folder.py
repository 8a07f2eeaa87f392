"""Reader of an exported folder with sentence-transformers."""

import numpy as np
from sentence_transformers import SentenceTransformer

DISTRIBUTIONS = ("sentence-transformers", "transformers", "torch")


def read(folder: str, texts: list[str]) -> dict[str, np.ndarray]:
    """Return the embeddings [texts, D] without a prompt, in batches of 3, which differ in padding."""
    model = SentenceTransformer(folder, trust_remote_code=True, device="cpu")
    return {"pooled": model.encode(texts, prompt="", batch_size=3, show_progress_bar=False)}
