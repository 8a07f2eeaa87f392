"""Pooling, normalization, length limit and prompts that a model folder declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neobert.config.schema import TokenizerConfig
from neobert.encoding.prompts import Prompts, read_prompts
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.families.table import is_causal
from neobert.plan.normalization import read_normalization
from neobert.printable import printable
from neobert.runfiles.model_folder import CODE, read_json

POOLINGS = {"mean": "avg", "cls": "cls", "max": "max"}
"""Pooling names of sentence-transformers, and the equivalent values of `config.pooling`."""
MODULES = "modules.json"
TRANSFORMER_SETTINGS = "sentence_bert_config.json"
KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True, slots=True)
class DeclaredSettings:
    """Embedding settings declared by a model folder; None for an undeclared setting.

    Attributes:
        pools_prompt: whether prompt tokens are pooled like text tokens.
    """

    pooling: str | None
    normalizes: bool
    max_length: int | None
    prompts: Prompts
    pools_prompt: bool

    def resolve_pooling(self, requested: str | None, folder: Path) -> str:
        """Return the requested or else the declared pooling.

        Raises `ProjectError` if there is neither, or if the pooling is not supported.
        """
        pooling, choices = requested or self.pooling, tuple(POOLINGS.values())
        if pooling in choices:
            return str(pooling)
        message = (
            "the model declares no pooling"
            if pooling is None
            else f"pooling {printable(pooling)} is not supported (supported: {', '.join(choices)})"
        )
        hint = f"pass --pooling with the pooling of the model's training: {', '.join(choices)}"
        if is_causal(str(read_json(folder / "config.json").get("model_type"))):
            hint += "; last-token pooling, as in causal models of sentence-transformers, is not supported"
        raise ProjectError(CODE, message, hint, str(folder), EXIT_USAGE)


def read_declared_settings(folder: Path) -> DeclaredSettings:
    """Read config.json and, where they exist, the files of sentence-transformers.

    Raises `ProjectError` if two declarations differ, for modules other than pooling and normalization, and
    for lowercasing that the tokenizer does not do.
    """
    _refuse_lowercasing(folder)
    own = read_json(folder / "config.json").get("pooling")
    modules = _module_folders(folder)
    settings = _pooling_settings(folder, modules)
    pooled = None if settings is None else _pooling_mode(settings, folder / modules["Pooling"])
    if own is not None and pooled is not None and own != pooled:
        raise ProjectError(
            CODE,
            f"config.json declares pooling {printable(str(own))}, but the Pooling module declares {pooled}",
            f"set the same pooling in config.json and {modules['Pooling']}/config.json",
            str(folder),
        )
    return DeclaredSettings(
        pooling=pooled or (None if own is None else str(own)),
        normalizes="Normalize" in modules,
        max_length=declared_max_length(folder),
        prompts=read_prompts(folder),
        pools_prompt=settings is None or settings.get("include_prompt") is not False,
    )


def declared_max_length(folder: Path) -> int | None:
    """Return the text limit of sentence-transformers in tokens, or None if the folder declares no limit.

    Raises `ProjectError` if a file that may declare it is not a JSON object.
    """
    length = read_json(folder / TRANSFORMER_SETTINGS, missing_ok=True).get("max_seq_length")
    if length is None and (folder / MODULES).is_file():  # release 6 saves it with the tokenizer alone
        length = read_json(folder / "tokenizer_config.json", missing_ok=True).get("model_max_length")
    return length if isinstance(length, int) and length > 0 else None


def _refuse_lowercasing(folder: Path) -> None:
    """Raise `ProjectError` if sentence-transformers lowercases texts that the tokenizer keeps as they are."""
    if read_json(folder / TRANSFORMER_SETTINGS, missing_ok=True).get("do_lower_case") is not True:
        return
    normalization = read_normalization(TokenizerConfig(path=str(folder)))
    if normalization is not None and not normalization.lowers_case:
        message = f"{TRANSFORMER_SETTINGS} sets do_lower_case, but the tokenizer keeps capital letters"
        hint = "add the normalizer Lowercase to tokenizer.json, or use sentence-transformers"
        raise ProjectError(CODE, message, hint, str(folder))


def _module_folders(folder: Path) -> dict[str, str]:
    """Return the folder of each sentence-transformers module by class name.

    Raises `ProjectError` if modules.json cannot be read or lists a module that is not supported.
    """
    listed = read_json(folder / MODULES, missing_ok=True, expect_list=True)
    modules: dict[str, str] = {}
    for module in listed:
        name = str(module.get("type", "")).rpartition(".")[2]
        if name not in KNOWN_MODULES:
            raise ProjectError(
                CODE,
                f"{MODULES} has a module {printable(name)}, which this command cannot run",
                f"supported modules: {', '.join(KNOWN_MODULES)}; use sentence-transformers for others",
                str(folder / MODULES),
            )
        modules[name] = str(module.get("path", ""))
    return modules


def _pooling_settings(folder: Path, modules: Mapping[str, str]) -> Mapping[str, Any] | None:
    if "Pooling" not in modules:
        return None
    location = modules["Pooling"]
    if Path(location).name != location:
        message = (
            f"the path of the Pooling module, {printable(location)}, is not a folder next to modules.json"
        )
        raise ProjectError(CODE, message, place=str(folder / MODULES))
    settings: Mapping[str, Any] = read_json(folder / location / "config.json")
    return settings


def _pooling_mode(settings: Mapping[str, Any], folder: Path) -> str:
    named = settings.get("pooling_mode")
    names = (
        [named]
        if isinstance(named, str)
        else named
        if isinstance(named, list)
        else _legacy_pooling_modes(settings)
    )
    if len(names) == 1 and names[0] in POOLINGS:
        return POOLINGS[names[0]]
    raise ProjectError(
        CODE,
        f"pooling {printable(', '.join(map(str, names)) or 'none')} of the Pooling module is not supported",
        f"set pooling_mode to one of {', '.join(POOLINGS)}",
        str(folder / "config.json"),
    )


def _legacy_pooling_modes(settings: Mapping[str, Any]) -> list[str]:
    """Return the poolings of the `pooling_mode_*` flags, which releases before 5.4 wrote."""
    prefix = "pooling_mode_"
    spelled = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
    chosen = [key.removeprefix(prefix) for key, value in settings.items() if key.startswith(prefix) and value]
    return [spelled.get(name, name) for name in chosen]
