"""Kinds of known-answer tests, which a rehearsal carries out and the rules judge."""

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
    "learned",
]
"""Meaning of the value of a test; `validators.known_answers` has the limits.

`isolation`: change of hidden states of documents whose tokens did not change, relative to a change that must
    occur; `causal`: the same of tokens before the changed ones.
`bidirectional`: share of documents in which later tokens change earlier hidden states.
`equality`: error of hidden states against plain attention, in units of rounding.
`positions`: number of tokens whose position id does not count from 0 in their document.
`different`, `shift`: relative change of the loss, which must change.
`same`: change of the loss, which must not change, relative to a change that must occur.
`learned`: share by which the loss with correct labels is below the loss with wrong labels, on new examples.
"""
