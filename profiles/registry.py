"""Registry of profiles, and resolution of a run from files and arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from neobert.config.canonical import sha256
from neobert.config.document import Document, load_document
from neobert.config.nodes import DEFAULT, Node, Origin
from neobert.config.overrides import Override, parse_overrides
from neobert.config.resolution import Resolution, build, collect_sources, resolve, resolve_accepted_values
from neobert.config.schema import RunConfig
from neobert.config.variables import References
from neobert.tasks.specs import sections_read
from profiles.about import Expectations, Kind, ProfileAbout, ProfileHead, Requirements
from profiles.begun import RecordedRun, changed_keys, with_recorded_values
from profiles.implied import with_implied_values
from profiles.inherit import (
    ABOUT,
    PROFILE,
    Layers,
    display_path,
    find_profile,
    identity_error,
    is_profile,
    is_shipped,
    load_layers,
    named_profile,
    profile_files,
    read_pins,
    top_level_entries,
    with_profile_name,
    without_null_profile,
)
from profiles.kept_step import with_kept_step
from profiles.recipe import with_recipe, without_null, without_recipe

__all__ = [
    "Expectations",
    "Profile",
    "RecordedRun",
    "Requirements",
    "ResolvedRun",
    "list_profiles",
    "load_profile",
    "profile_digest",
    "resolve_readable",
    "resolve_run",
]


class Profile(NamedTuple):
    """A named profile, resolved without a run file.

    Attributes:
        config: configuration of the profile without any run file; rules compare runs with it, and `expects`
            states its speed.
        digest: hash of `about` and of the resolved configuration.
        files: paths of its own file and of its base profiles.
        is_shipped: whether its file belongs to this project; False for user profiles.
        is_pinned: whether it has a hash in profiles.lock.
        is_locked: whether the digest is the one in profiles.lock.
    """

    name: str
    kind: Kind
    intent: str
    requires: Requirements
    expects: Expectations
    config: RunConfig
    origins: Mapping[str, Origin]
    digest: str
    files: tuple[str, ...]
    is_shipped: bool
    is_pinned: bool
    is_locked: bool


@dataclass(frozen=True, slots=True)
class ResolvedRun:
    """Resolved config of a requested run, with the origin of every value.

    Attributes:
        digest: SHA-256 of the canonical configuration.
        source_file: last run file, or else the profile's file; empty if there is neither.
        references: names of the variables in a value, by dotted key.
        begun_with: keys with a recorded value of the run, which differs from the current default or profile.
    """

    config: RunConfig
    profile: Profile | None
    origins: Mapping[str, Origin]
    digest: str
    source_file: str
    overrides: tuple[Override, ...] = ()
    references: References = field(default_factory=dict)
    begun_with: tuple[str, ...] = ()

    @property
    def is_production(self) -> bool:
        """Return whether production rules apply, which includes runs without a profile."""
        return self.profile is None or self.profile.kind == "production"

    @property
    def is_smoke(self) -> bool:
        """Return whether a smoke profile ends the run within minutes."""
        return self.profile is not None and self.profile.kind == "smoke"

    @property
    def device(self) -> Literal["cpu", "cuda"] | None:
        """Device type that the profile requires, or None if there is no profile."""
        return None if self.profile is None else self.profile.requires.device

    def origin(self, path: str) -> Origin:
        """Return the origin of a key's value, or `DEFAULT` for a key that was not set."""
        return self.origins.get(path, DEFAULT)

    def place(self, path: str) -> Origin:
        """Return the location for a finding about a key: its value, else its section, else the run file."""
        while path:
            origin = self.origin(path)
            if origin.kind != "default":
                return origin
            path = path.rpartition(".")[0]
        return Origin("file", self.source_file, 1) if self.source_file else DEFAULT


Loaded = tuple[Profile, tuple[Document, ...]]


def list_profiles() -> tuple[str, ...]:
    """Return the sorted names of all profiles that a run can use."""
    return tuple(sorted(name for name in profile_files() if not name.startswith("_")))


def load_profile(name: str) -> Profile:
    """Load a profile by name.

    Raises ProjectError if there is no such profile or its inheritance is invalid, and ConfigError for invalid
    values.
    """
    return _load_profile_file(find_profile(name))[0]


def profile_digest(name: str) -> str:
    """Return the hash of a profile's current files, ignoring the lock. Raises like `load_profile`."""
    about, _, resolution, otherwise = _read_profile(load_layers(find_profile(name)))
    return _profile_content_digest(about, resolution.config, otherwise)


def resolve_run(
    profile: str | None,
    files: Sequence[str | Path] = (),
    overrides: Sequence[str] = (),
    begun: RecordedRun | None = None,
) -> ResolvedRun:
    """Resolve a run: its profile, the run files from left to right, then the overrides.

    A profile file in place of a run file resolves to the profile itself. `begun`: record of the run that this
    one continues, whose values replace shipped profiles and defaults.
    Raises ConfigError with all problems at once, and ProjectError if profiles contradict each other.
    """
    documents = [without_null_profile(load_document(file)) for file in files]
    parsed = parse_overrides(overrides)
    _refuse_profile_override(parsed)
    if any(map(is_profile, documents)):
        return _resolve_profile_file(profile, documents, parsed, begun)
    name, place = named_profile(documents, profile)
    if name is None:
        return _resolve_with_profile(None, (), documents, parsed, begun)
    base_profile, base = _load_profile_file(find_profile(name, place))
    if base_profile.kind == "base":
        hint = f"write a profile with `extends: {name}`, and use it instead"
        raise identity_error(f"{name} is a base for other profiles and cannot be run", hint, place)
    return _resolve_with_profile(base_profile, base, documents, parsed, begun)


def resolve_readable(
    profile: str | None, files: Sequence[str | Path], overrides: Sequence[str] = ()
) -> ResolvedRun | None:
    """Resolve the known keys of run files in another trainer's format, which `resolve_run` rejects.

    The result is only for checking rules. Returns None if no file has such a format or the
    remaining keys cannot be resolved.
    """
    documents = [without_null_profile(load_document(file)) for file in files]
    if any(map(is_profile, documents)):
        return None
    name, place = named_profile(documents, profile)
    base_profile, base = _load_profile_file(find_profile(name, place)) if name else (None, ())
    parsed = parse_overrides(overrides)
    layers = with_recipe([*base, *documents], parsed)
    resolution = resolve_accepted_values(layers, without_null(parsed))
    return None if resolution is None else _build_resolved_run(resolution, base_profile, documents, parsed)


def _resolve_profile_file(
    profile: str | None,
    documents: Sequence[Document],
    overrides: tuple[Override, ...],
    begun: RecordedRun | None,
) -> ResolvedRun:
    path = next(Path(document.file) for document in documents if is_profile(document))
    if len(documents) > 1 or profile not in (None, path.stem):
        hint = f"write profile: {path.stem} in a run file"
        raise identity_error(f"{path} is a profile and cannot be combined with other files", hint, str(path))
    return _resolve_with_profile(*_load_profile_file(path), (), overrides, begun)


def _resolve_with_profile(
    profile: Profile | None,
    base: Sequence[Document],
    documents: Sequence[Document],
    overrides: tuple[Override, ...],
    begun: RecordedRun | None,
) -> ResolvedRun:
    layers, given = with_recipe([*base, *documents], overrides), without_null(overrides)

    def resolved(layers: Sequence[Document]) -> Resolution:
        return resolve(with_implied_values(layers, given), with_kept_step(layers, given), sections_read())

    resolution = resolved(layers)
    if resolution.config.plugins.is_used:
        from neobert.plugins.code import plugin_layer

        layers = (*layers, plugin_layer(resolution))
        resolution = resolved(layers)
    if begun is not None and (with_values := with_recorded_values(layers, resolution, begun)):
        continued = resolved(with_values)
        run = _build_resolved_run(continued, profile, documents, overrides)
        return replace(run, begun_with=changed_keys(resolution, continued))
    return _build_resolved_run(resolution, profile, documents, overrides)


def _build_resolved_run(
    resolution: Resolution,
    profile: Profile | None,
    documents: Sequence[Document],
    overrides: tuple[Override, ...],
) -> ResolvedRun:
    source = documents[-1].file if documents else profile.files[0] if profile else ""
    return ResolvedRun(
        resolution.config,
        profile,
        resolution.origins,
        resolution.digest,
        source,
        overrides,
        resolution.references,
    )


def _load_profile_file(path: Path) -> Loaded:
    """Load a profile file; return the profile and its documents, over which a run's documents are laid."""
    return shipped_profile(display_path(path)) if is_shipped(str(path)) else _build_profile(load_layers(path))


@cache
def shipped_profile(file: str) -> Loaded:
    """Return a profile of this project and its documents, which stay the same while a process runs."""
    return _build_profile(load_layers(Path(file)))


def _build_profile(layers: Layers) -> Loaded:
    about, documents, resolution, otherwise = _read_profile(layers)
    return _profile_from_resolution(about, resolution, otherwise, layers.files), documents


def _read_profile(layers: Layers) -> tuple[ProfileAbout, tuple[Document, ...], Resolution, RunConfig]:
    """Return the section `about`, the documents, their resolution, and the config without the recipe."""
    about = _read_about(layers)
    documents = (*layers.documents, with_profile_name(layers, about.name))
    for_pretraining, plain = with_recipe(documents), without_recipe(documents)
    resolution = resolve(for_pretraining)
    otherwise = resolution.config if plain == for_pretraining else resolve(plain).config
    return about, documents, resolution, otherwise


def _profile_content_digest(about: ProfileAbout, config: RunConfig, otherwise: RunConfig) -> str:
    """Return the hash of a profile over its configs with and without the pretraining recipe."""
    content = {"about": about, "config": config}
    return sha256(content | ({} if otherwise == config else {"otherwise": otherwise}))


def _profile_from_resolution(
    about: ProfileAbout, resolution: Resolution, otherwise: RunConfig, files: tuple[str, ...]
) -> Profile:
    digest = _profile_content_digest(about, resolution.config, otherwise)
    pinned = read_pins().get(about.name)
    return Profile(
        name=about.name,
        kind=about.kind,
        intent=about.intent,
        requires=about.requires,
        expects=about.expects,
        config=resolution.config,
        origins=resolution.origins,
        digest=digest,
        files=files,
        is_shipped=is_shipped(files[0]),
        is_pinned=pinned is not None,
        is_locked=pinned == digest,
    )


def _read_about(layers: Layers) -> ProfileAbout:
    document = layers.about
    node = top_level_entries(document).get(ABOUT)
    if node is None:
        hint = f"add about: {{name: {Path(document.file).stem}, kind: development, intent: TEXT}}"
        raise identity_error("the profile has no about section", hint, document.file)
    head = Node({ABOUT: node}, node.origin, node.key)
    about = build(ProfileHead, head, collect_sources([document])).about
    if about.name != Path(document.file).stem:
        place = f"{document.file}:{node.key.line}:{node.key.column}"
        message = f"the file is named {Path(document.file).stem}, but about.name is {about.name}"
        raise identity_error(message, "rename the file or change about.name", place)
    return about


def _refuse_profile_override(overrides: Sequence[Override]) -> None:
    for override in overrides:
        if override.path == PROFILE:
            hint = f"write --profile {override.text}"
            raise identity_error(
                "profile cannot be set as an override", hint, f"argument {override.position}"
            )
