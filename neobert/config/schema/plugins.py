"""Config section of plug-ins: user-defined functions that a run calls."""

# ruff: noqa: RUF009  (key() builds fields, which is what belongs in a class body)

from dataclasses import dataclass
from functools import partial

from neobert.schema_fields import ConfigSection, NonEmpty, key

# A resume compares the code that these keys refer to (PLG003), and not only their values.
reference = partial(key, is_reference=True)
of_data = partial(reference, by_content=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PluginsConfig(ConfigSection):
    """User-defined functions: path/to/file.py:function, package.module:function, or an entry point's name."""

    masking: NonEmpty | None = of_data(None, "Function that masks the tokens of a document.")
    metrics: tuple[NonEmpty, ...] = reference(
        (), "Functions of predictions and labels, reported as eval/*.", affects="cadence"
    )
    hooks: tuple[NonEmpty, ...] = reference(
        (),
        "Classes, or functions that return an object, whose methods are called on events of the run.",
        affects="reporting",
    )
    dataset: NonEmpty | None = of_data(
        None, "Function that returns the rows of a split, instead of dataset.path, name and mixture."
    )
    loss: NonEmpty | None = of_data(None, "Function of logits and labels that returns the loss per label.")
    code: tuple[NonEmpty, ...] = key(
        (),
        "SHA-256 of each file of the functions, and version of each package. Filled in when a run file is "
        "read: a value in a run file has no effect.",
        by_content=True,
    )

    @property
    def is_used(self) -> bool:
        """Return whether the run has a plug-in."""
        return bool(self.masking or self.metrics or self.hooks or self.dataset or self.loss)
