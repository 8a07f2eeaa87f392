"""Rule file of a speedrun: its sources, its target loss, and the keys that no recipe may change."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

from neobert.config import RunConfig, all_keys, load_document, to_dict
from neobert.config.canonical import flatten, sha256
from neobert.config.corpora import corpus_paths, list_corpora
from neobert.config.keys import key_effect
from neobert.config.layers import resolve_file_relative_paths
from neobert.config.nodes import find, to_plain_value
from neobert.config.resolution import build, collect_sources, resolve
from neobert.data.sources.file_listing import resolve_paths
from neobert.errors import EXIT_CHECK_FAILED, EXIT_USAGE, ProjectError
from neobert.families.table import initial_weights
from neobert.plurals import listed
from neobert.printable import printable
from neobert.runfiles.checkpoint.manifest import file_sha256
from neobert.schema_fields import NonEmpty, NonNegativeInt, PositiveFloat, gt, key, lt, min_length
from profiles.registry import ResolvedRun

DATA_SECTIONS = ("dataset.", "tokenizer.")
MASKS = ("datacollator.mlm_probability_eval", "datacollator.mask_all", "datacollator.max_length")
MASK_RATE = MASKS[0]
PART = "trainer.eval_max_batches"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file that the runs read, with its URL and checksum."""

    url: NonEmpty = field(metadata={"description": "Public URL of the file."})
    path: NonEmpty = field(metadata={"description": "Path of the file, relative to the rule file."})
    sha256: Annotated[str, min_length(64)] = field(metadata={"description": "SHA-256 of the file, in hex."})


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedrunRules:
    """Rules of a speedrun.

    Attributes:
        fixed: config keys and values that override the recipe, as in a run file.
        run, profile: run file or profile of the recipe; exactly one of the two is set.
    """

    name: NonEmpty = field(metadata={"description": "Name of the speedrun."})
    target_loss: PositiveFloat = field(metadata={"description": "Held-out loss to reach, in nats."})
    significance: Annotated[float, gt(0), lt(1)] = key(
        0.01, "Significance level; the p-value must be below it."
    )
    seeds: tuple[NonNegativeInt, ...] = field(metadata={"description": "Seeds; one run per seed."})
    sources: tuple[SourceFile, ...] = field(metadata={"description": "Files that the runs read."})
    fixed: dict[str, Any] = field(metadata={"description": "Keys that no recipe may change."})
    run: str | None = key(None, "Run file of the recipe, relative to the rule file.")
    profile: str | None = key(None, "Profile of the recipe.")


@dataclass(frozen=True, slots=True)
class RuleFile:
    """A rule file; its methods return paths resolved from its folder.

    Attributes:
        overrides: the fixed keys as `KEY=VALUE` arguments.
    """

    path: Path
    rules: SpeedrunRules
    overrides: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the shared conditions; records with the same digest are comparable."""
        rules = self.rules
        sources = [[source.url, source.sha256] for source in rules.sources]
        return sha256([rules.target_loss, rules.significance, sources, rules.fixed])

    @property
    def run(self) -> Path | None:
        """Return the path of the recipe's run file, or None if the recipe is a profile."""
        return None if self.rules.run is None else self.path.parent / self.rules.run

    def source_path(self, source: SourceFile) -> Path:
        """Return the local path of a source, relative to the folder of the rule file."""
        return self.path.parent / source.path


def read_rules(path: Path) -> RuleFile:
    """Read a rule file. Raises ProjectError for an incomplete or contradictory file."""
    document = load_document(path)
    rules = build(SpeedrunRules, document.root, collect_sources([document]), document.flaws)
    fixed = find(document.root, ("fixed",))
    assert fixed is not None
    resolve([replace(document, root=fixed)])  # as overrides, wrong keys would be on no line of a file
    leaves = flatten(to_plain_value(resolve_file_relative_paths(fixed)))
    file = RuleFile(path, rules, tuple(f"{name}={json.dumps(value)}" for name, value in leaves.items()))
    if len(set(rules.seeds)) < max(2, len(rules.seeds)):
        _raise_rules_error(
            file, "seeds must list at least two seeds, all different", "write seeds: [0, 1, 2]"
        )
    if "seed" in leaves:
        _raise_rules_error(
            file, "fixed sets seed, but seeds sets the seed of each run", "remove seed from fixed"
        )
    if (rules.run is None) == (rules.profile is None):
        _raise_rules_error(file, "run and profile are both set or both missing", "set either run or profile")
    return file


def verify_sources(file: RuleFile) -> None:
    """Raise ProjectError for the first source that is missing, unreadable or has another SHA-256."""
    for source in file.rules.sources:
        place = file.source_path(source)
        try:
            if place.exists() and not place.is_file():  # reading a FIFO or a device may never end
                _raise_rules_error(file, f"source {source.path} is not a regular file", "set path to a file")
            digest = file_sha256(place)
        except FileNotFoundError:
            hint = printable(f"download {source.url} to {os.path.abspath(place)}")
            _raise_rules_error(file, f"source {source.path} is missing", hint, exit_code=EXIT_CHECK_FAILED)
        except OSError as error:
            hint = "set path to a file that this user can read"
            _raise_rules_error(file, f"source {source.path} cannot be read: {error.strerror}", hint)
        if digest != source.sha256.lower():
            problem = f"source {source.path} has SHA-256 {digest}, not {source.sha256}"
            hint = printable(f"download {source.url} again, or correct sha256 in the rule file")
            _raise_rules_error(file, problem, hint, exit_code=EXIT_CHECK_FAILED)


def require_same_conditions(file: RuleFile, run: ResolvedRun) -> None:
    """Raise ProjectError if the runs of a recipe would not be comparable with runs of another recipe.

    A recipe must not start from weights, read unlisted files or change its evaluation.
    """
    config = run.config
    if weights := initial_weights(config) or config.trainer.continue_from:
        problem = f"the recipe starts from the weights in {weights}"
        hint = "remove model.pretrained_checkpoint and trainer.continue_from: runs start from random weights"
        _raise_rules_error(file, problem, hint)
    if unlisted := sorted(_unlisted_files(file, config)):
        problem = f"the recipe reads {listed(unlisted, 3)}, which the rule file does not list under sources"
        _raise_rules_error(
            file,
            problem,
            "add each file to sources with its URL and SHA-256; a recipe may read local files only",
        )
    values, defaults = (flatten(to_dict(each)) for each in (config, RunConfig()))
    fixed = {override.partition("=")[0] for override in file.overrides}
    if values[MASK_RATE] is None or values[PART] is not None:
        problem = f"{MASK_RATE} must be set and {PART} must be null, so that all recipes are evaluated alike"
        _raise_rules_error(file, problem, f"write {MASK_RATE} (0.15) and {PART}: null under fixed")
    free = [name for name in evaluation_keys() if name not in fixed and values[name] != defaults[name]]
    if free:
        problem = f"the recipe sets {listed(free, 3)}, which the evaluation depends on"
        _raise_rules_error(file, problem, "move these keys to fixed in the rule file")


def evaluation_keys() -> Iterator[str]:
    """Yield the keys of text, tokenizer and masks, which an evaluation depends on."""
    for name in all_keys():
        if name in MASKS or (name.startswith(DATA_SECTIONS) and key_effect(name) != "loading"):
            yield name


def _unlisted_files(file: RuleFile, config: RunConfig) -> Iterator[str]:
    """Yield the files and Hub names that a run reads but the rule file does not list under sources."""
    known = {os.path.realpath(file.source_path(source)) for source in file.rules.sources}
    for corpus in list_corpora(config.dataset):
        if corpus.path is None:
            yield corpus.name or "no text"
        for place in resolve_paths(corpus_paths(corpus)):
            yield from _unknown_paths(str(place.path), known)
    if config.tokenizer.path is not None:
        yield from _unknown_paths(config.tokenizer.path, known)
    elif config.tokenizer.name is not None:
        yield config.tokenizer.name


def _unknown_paths(path: str, known: set[str]) -> Iterator[str]:
    is_folder = os.path.isdir(path)
    inside = (each for each in Path(path).rglob("*") if each.is_file()) if is_folder else [Path(path)]
    yield from (str(each) for each in inside if os.path.realpath(each) not in known)


def _raise_rules_error(file: RuleFile, problem: str, hint: str, *, exit_code: int = EXIT_USAGE) -> NoReturn:
    raise ProjectError("speedrun", printable(problem), hint, str(file.path), exit_code)
