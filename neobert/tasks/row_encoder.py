"""Base class for encoders of rows with more than a single text: labels, pairs, conversations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neobert.data.tokenize.encoding import SegmentEncoder


@dataclass(frozen=True, slots=True)
class RowEncoder:
    """Encoder of rows that wraps an encoder of texts. Subclasses define `encode`.

    Attributes:
        texts: tokenizes and frames the texts, with the length limit of segments.
    """

    texts: SegmentEncoder

    @property
    def max_length(self) -> int:
        """Maximum length of a segment in tokens."""
        return self.texts.max_length

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Type of the stored tokens."""
        return self.texts.dtype
