"""Run configuration: loading, merging, overrides and validation, with the origin of every value."""

from neobert.config.canonical import digest, to_dict
from neobert.config.document import Document, load_document
from neobert.config.errors import ConfigError, ConfigIssue
from neobert.config.keys import KeyInfo, all_keys, sections
from neobert.config.nodes import COMMAND_LINE, Origin
from neobert.config.overrides import Override, parse_overrides
from neobert.config.resolution import Resolution, from_dict, replace, resolve
from neobert.config.schema import RunConfig

__all__ = [
    "COMMAND_LINE",
    "ConfigError",
    "ConfigIssue",
    "Document",
    "KeyInfo",
    "Origin",
    "Override",
    "Resolution",
    "RunConfig",
    "all_keys",
    "digest",
    "from_dict",
    "load_document",
    "parse_overrides",
    "replace",
    "resolve",
    "sections",
    "to_dict",
]
