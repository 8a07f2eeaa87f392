"""Kinds of known-answer tests, which a rehearsal runs and the rules evaluate."""

from __future__ import annotations

from typing import Literal

AnswerKind = Literal[
    "isolation",
    "bidirectional",
    "causal",
    "equality",
    "positions",
    "different",
    "same",
    "shift",
    "next",
    "end",
    "learned",
    "exact",
    "close",
]
"""Meaning of the value of a test; `validators.known_answers` has the limits.

`isolation`: change of hidden states of documents whose tokens did not change, relative to a change that must
    occur; `causal`: the same of tokens before the changed ones.
`bidirectional`: share of documents in which later tokens change earlier hidden states.
`equality`: error of hidden states against plain attention, in units of rounding.
`positions`: number of tokens whose position id does not count from 0 in their document.
`different`, `shift`: relative change of the loss, which must change.
`next`: share of the targets whose label is the next token of their document, over targets where this token
    differs from its neighbours; `end`: share of the targets of last tokens whose label is not the first token
    of the next document. Both are of labels as the target rule wrote them; the other tests plant theirs.
`same`: change of the loss, which must not change, relative to a change that must occur.
`exact`: number of values of an operator that differ from those that they must equal bit for bit; `close`:
    error of its values in units of rounding. Both are of native sparse attention.
`learned`: share by which the loss with correct labels is below the loss with wrong labels, on new examples.
"""
