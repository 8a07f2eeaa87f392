"""Tokenizer: loaded or trained, and checked for the special tokens that a task needs."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from neobert.config.schema import TokenizerConfig
from neobert.data.sources.corpus import Corpus
from neobert.data.tokenize.framing import Framing, measure_framing
from neobert.data.tokenize.tokenizer_files import (
    tokenizer_from_file,
    tokenizer_from_hub,
    tokenizer_from_path,
    unreadable_tokenizer_error,
)
from neobert.data.tokenize.trained import (
    describe_tokenizer,
    marker_template,
    train_tokenizer,
    trained_vocab_size,
)
from neobert.errors import ProjectError
from neobert.plan.tokenizer_contents import ROLE_SPELLINGS, ROLES_ADDED
from neobert.plan.vocabulary import INERT, INERT_TOKEN, VOCAB_MULTIPLE, count_renumbered, round_up
from neobert.printable import printable
from neobert.runfiles.chat_template import read_template

SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")
_ADDED_MASK = ROLE_SPELLINGS["mask_token"][0]


@dataclass(frozen=True, eq=False)
class TokenizerBundle:
    """A tokenizer and the values derived from it.

    Attributes:
        tokenizer: the fast tokenizer.
        vocab_size: embedding rows for the tokenizer: its length, rounded up to a multiple of 128.
        num_tokens: tokens that text can contain; the other rows are inert.
        framing: what the tokenizer adds to a text.
        pair_framing: what it adds to a pair of texts.
        pad_id: None without a padding token.
        random_ids: int64 [n], ids from which random replacements are drawn: neither special nor inert tokens.
        is_maskable: bool [vocab_size], True for the ids in `random_ids`.
    """

    tokenizer: PreTrainedTokenizerFast
    vocab_size: int
    num_tokens: int
    framing: Framing
    pair_framing: Framing
    pad_id: int | None
    random_ids: NDArray[np.int64]
    is_maskable: NDArray[np.bool_]

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hex of tokenizer.json, inert tokens, special tokens' roles and the chat template.

        Computed on demand: for a large vocabulary, it takes seconds and hundreds of MB.
        """
        vocabulary = self.tokenizer.get_vocab()
        return _compute_digest(self.tokenizer, _inert_names(vocabulary, self.vocab_size))

    @property
    def filler_id(self) -> int:
        """Id that fills rows. No text attends to it, so any id will do without a padding token."""
        return 0 if self.pad_id is None else self.pad_id

    @property
    def mask_id(self) -> int:
        """Id of the mask token, for tasks that declare the role."""
        number = self.tokenizer.mask_token_id
        assert number is not None, "TaskSpec.roles has mask_token"
        return int(number)

    @property
    def end_id(self) -> int:
        """Id of the token that ends a text, for tasks that declare the role eos_token."""
        number = self.role_ids()["eos_token_id"]
        assert number is not None, "TaskSpec.roles has eos_token"
        return number

    @property
    def types_pairs(self) -> bool:
        """Return whether the second text of a pair has tokens of type 1, for a model that has types."""
        backend, name = self.tokenizer.backend_tokenizer, "token_type_ids"
        framed = backend.post_process(*[backend.encode("", add_special_tokens=False)] * 2)
        return name in self.tokenizer.model_input_names and 1 in framed.type_ids

    def role_ids(self) -> dict[str, int | None]:
        """Return the ids of special tokens, None for a missing one, by their names in a model's config.

        A missing bos or eos id is replaced by the id of cls or sep. pad_token_id is None if the padding token
        also ends texts: the embedding of a padding token is not trained.
        """
        roles = ("pad", "cls", "sep", "bos", "eos", "mask")
        ids = {role: getattr(self.tokenizer, f"{role}_token_id") for role in roles}
        for role, fallback in (("bos", "cls"), ("eos", "sep")):
            ids[role] = ids[fallback] if ids[role] is None else ids[role]
        if ids["pad"] == ids["eos"]:
            ids["pad"] = None
        return {f"{role}_token_id": number for role, number in ids.items()}

    def summary(self) -> dict[str, Any]:
        """Return digest, sizes, algorithm, treatment of case and accents, and framing, for reports."""
        sizes = {"digest": self.digest, "vocab_size": self.vocab_size, "tokens": self.num_tokens}
        names = map(self.tokenizer.convert_ids_to_tokens, (self.framing.start, self.framing.end))
        start, end = map(" ".join, names)
        framing = {"framing": printable(f"{start} text {end}".strip())}
        return sizes | describe_tokenizer(self.tokenizer.backend_tokenizer) | framing

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` and its config to a folder. Raises OSError."""
        try:
            self.tokenizer.save_pretrained(folder)
        except OSError:
            raise
        except Exception as error:  # the library raises Exception itself for a full disk
            number = SYSTEM_ERROR.search(str(error))
            raise OSError(int(number[1]) if number else errno.EIO, str(error), str(folder)) from error


def load_tokenizer(
    config: TokenizerConfig, corpus: Corpus | None = None, roles: Sequence[str] = ()
) -> TokenizerBundle:
    """Load the tokenizer of a config as `open_tokenizer` does, with the values derived from it."""
    return build_bundle(open_tokenizer(config, corpus, roles), _tokenizer_location(config))


def open_tokenizer(
    config: TokenizerConfig, corpus: Corpus | None = None, roles: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Load the tokenizer that a config names (`path` before `name`), or train one if it names none.

    `corpus` is the text to train it on. `roles` are special tokens that it must have, such as mask_token.
    Raises ProjectError TOK001 (missing, unreadable), TOK002 (lacks a role), TOK003 (not fast), TOK004
    (cannot be trained).
    """
    location = _tokenizer_location(config)
    if config.path is not None:
        tokenizer = tokenizer_from_path(Path(os.path.expanduser(config.path)), config)
    elif config.name is not None:
        tokenizer = tokenizer_from_hub(config.name, config)
    else:
        tokenizer = _train_tokenizer(config, corpus, is_causal="eos_token" in roles)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ProjectError(
            "TOK003", "is not a fast tokenizer", "save the tokenizer with a tokenizer.json", location
        )
    # A tokenizer.json may hold the lengths of somebody's last call.
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()
    _recognize_roles(tokenizer)
    if config.allow_special_token_rewrite:
        _add_roles(tokenizer)
    if config.chat_template is not None:
        tokenizer.chat_template = read_template(config.chat_template)
    if missing := [role for role in roles if not _has_role(tokenizer, role)]:
        names = ", ".join(role.removesuffix("_token") for role in missing)
        decoder_hint = "; for a decoder, set a task without masks" if "mask_token" in missing else ""
        raise ProjectError(
            "TOK002",
            f"has no {names} token, which the task needs",
            f"name the token in tokenizer_config.json ({', '.join(missing)}), or set "
            f"tokenizer.allow_special_token_rewrite to true to add the missing tokens{decoder_hint}",
            location,
        )
    return tokenizer


def _has_role(tokenizer: PreTrainedTokenizerFast, role: str) -> bool:
    """Return whether a tokenizer has the special token `role`; a sep token also counts as eos_token."""
    names = (role, "sep_token") if role == "eos_token" else (role,)
    return any(getattr(tokenizer, name) is not None for name in names)


def _tokenizer_location(config: TokenizerConfig) -> str:
    return config.path or config.name or "tokenizer"


def is_trained(config: TokenizerConfig) -> bool:
    """Return whether the tokenizer is trained from the corpus."""
    return config.path is None and config.name is None


def build_bundle(tokenizer: PreTrainedTokenizerFast, location: str) -> TokenizerBundle:
    """Return a tokenizer with the values derived from it.

    Raises TOK001 for a vocabulary without words or with gaps between its ids.
    """
    vocabulary = tokenizer.get_vocab()
    ids, vocab_size = set(vocabulary.values()), round_up(len(vocabulary), VOCAB_MULTIPLE)
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    framing = measure_framing(tokenizer.backend_tokenizer)
    special = {*tokenizer.all_special_ids, *added, *framing.frame(())}
    if max(ids) >= len(ids) or special >= ids:
        has_gaps = max(ids) >= len(ids)
        fault = f"has ids up to {max(ids)} for {len(ids)} tokens" if has_gaps else "has only special tokens"
        raise unreadable_tokenizer_error(location, fault, "use a complete tokenizer whose ids have no gaps")
    is_maskable = np.arange(vocab_size) < len(ids)
    is_maskable[list(special)] = False
    return TokenizerBundle(
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        num_tokens=len(_vocabulary_without_inert_tokens(tokenizer)),
        framing=framing,
        pair_framing=measure_framing(tokenizer.backend_tokenizer, 2),
        pad_id=tokenizer.pad_token_id,
        random_ids=np.flatnonzero(is_maskable).astype(np.int64),
        is_maskable=is_maskable,
    )


def refuse_shared_padding(bundle: TokenizerBundle, location: str) -> None:
    """Raise TOK002 if the padding token is also the mask or the unknown token.

    The embedding of padding stays zero and has no gradient, so the shared token could not be learned.
    """
    tokenizer = bundle.tokenizer
    others = {"mask": tokenizer.mask_token_id, "unknown": tokenizer.unk_token_id}
    shared = [role for role, number in others.items() if number is not None and number == bundle.pad_id]
    if shared:
        raise ProjectError(
            "TOK002",
            f"has {printable(tokenizer.pad_token)} as both padding and {shared[0]} token",
            "remove pad_token from tokenizer_config.json, or set it to a separate token, such as [PAD]",
            location,
        )


def count_renumbered_in_file(bundle: TokenizerBundle, file: Path) -> tuple[int, int]:
    """Return how many tokens of a tokenizer.json have another id or none in `bundle`, and how many it has.

    Inert tokens are ignored; `count_renumbered` distinguishes renamed tokens from another vocabulary.
    Raises TOK001 for a file that is not a tokenizer.
    """
    here, there = (
        _vocabulary_without_inert_tokens(each) for each in (bundle.tokenizer, tokenizer_from_file(file))
    )
    return count_renumbered(here, there), len(there)


def _vocabulary_without_inert_tokens(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    return {token: number for token, number in tokenizer.get_vocab().items() if not INERT.fullmatch(token)}


def _inert_names(vocabulary: Mapping[str, int], size: int) -> list[str]:
    """Return the names of the inert tokens that extend a vocabulary to `size` tokens."""
    num_inert = sum(1 for token in vocabulary if INERT.fullmatch(token))
    return [INERT_TOKEN.format(num_inert + number) for number in range(size - len(vocabulary))]


def _train_tokenizer(
    config: TokenizerConfig, corpus: Corpus | None, *, is_causal: bool
) -> PreTrainedTokenizerFast:
    if corpus is None:
        raise ProjectError(
            "TOK001",
            "no tokenizer is set, and there is no text to train one on",
            "set tokenizer.path",
            "tokenizer",
        )
    tokenizer = train_tokenizer(corpus, config, is_causal=is_causal)
    vocabulary = tokenizer.get_vocab()
    # A text may have fewer words than requested. Runs that start from this one's checkpoints read the number
    # of rows from its tokenizer, so it has the requested size.
    size = round_up(max(len(vocabulary), trained_vocab_size(config)), VOCAB_MULTIPLE)
    names = _inert_names(vocabulary, size)
    tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return tokenizer


def _recognize_roles(tokenizer: PreTrainedTokenizerFast) -> None:
    """Assign the special token with the usual spelling to each role that the tokenizer does not declare."""
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    spelled = {
        role: next((name for name in names if name in special), None)
        for role, names in ROLE_SPELLINGS.items()
        if getattr(tokenizer, role) is None
    }
    tokenizer.add_special_tokens({role: name for role, name in spelled.items() if name is not None})


def _add_roles(tokenizer: PreTrainedTokenizerFast) -> None:
    """Add the special tokens that a masked-LM encoder needs and the tokenizer lacks; frame texts by them."""
    missing = {role: _build_added_token(role) for role in ROLES_ADDED if getattr(tokenizer, role) is None}
    tokenizer.add_special_tokens(missing)
    framing = measure_framing(tokenizer.backend_tokenizer)
    if (framing.start, framing.end) != ((tokenizer.cls_token_id,), (tokenizer.sep_token_id,)):
        backend = tokenizer.backend_tokenizer
        backend.post_processor = marker_template(tokenizer.cls_token, tokenizer.sep_token, backend)


def _build_added_token(role: str) -> AddedToken:
    """Build an added token for a role. The mask token includes the space before it, like a word does.

    Otherwise `a [MASK] b` would have a separate token for the space, which masked training text never has.
    """
    name = ROLE_SPELLINGS[role][0]
    return AddedToken(name, special=True, normalized=False, lstrip=role == "mask_token")


def _compute_digest(tokenizer: PreTrainedTokenizerFast, inert: Sequence[str]) -> str:
    """Return the digest of a tokenizer and its `inert` tokens.

    Earlier versions added these to every tokenizer, and prepared text and checkpoints have their digests.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content |= {"truncation": None, "padding": None}  # settings of the last call, not of the tokenizer
    words = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
    for token in content["added_tokens"]:
        # No training text depends on this flag, and masks added by earlier versions had it unset.
        if token["content"] == tokenizer.mask_token == _ADDED_MASK and token["content"] not in words:
            token["lstrip"] = False
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False) | {"special": True}
    added = [{"id": number, "content": name, **flags} for number, name in enumerate(inert, len(tokenizer))]
    content["added_tokens"] += added
    roles = {role: getattr(tokenizer, role) for role in ROLE_SPELLINGS}
    template = [tokenizer.chat_template] if tokenizer.chat_template else []
    plain = [{"split_special_tokens": True}] if tokenizer.split_special_tokens else []
    canonical = json.dumps([content, roles, *template, *plain], sort_keys=True, separators=(",", ":"))
    return sha256(canonical.encode("ascii")).hexdigest()
