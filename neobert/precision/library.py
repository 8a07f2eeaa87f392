"""Library: a package that converts linear layers, its section of keys and its recipes. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from neobert.families.shape import ModelShape

Version = tuple[int, int]
UNBOUNDED = (99, 0)
ADA, HOPPER, BLACKWELL = ((8, 9), UNBOUNDED), ((9, 0), UNBOUNDED), ((10, 0), UNBOUNDED)
DATA_CENTER_BLACKWELL, CONSUMER_BLACKWELL = ((10, 0), (11, 0)), ((12, 0), (13, 0))
EVERY = ((0, 0), UNBOUNDED)


class LowPrecisionRecipe(NamedTuple):
    """Requirements of one recipe.

    Attributes:
        capabilities: range of supported compute capabilities, without its end.
        multiple: divisor of the features of a layer, and of the tokens of a microbatch.
        products: torch's names of the types of its matrix products; empty if torch does not record them,
            because the library multiplies.
        reads: keys of the section that this recipe reads and others do not.
        min_cuda: CUDA version from which torch's build has its products.
        rate: peak FLOP/s of its products relative to bf16, by the data sheets of these GPUs.
        was_run: whether this project has run it on a GPU.
    """

    capabilities: tuple[Version, Version]
    multiple: int
    products: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    min_cuda: Version = (0, 0)
    rate: float = 2.0
    was_run: bool = False

    @property
    def is_emulated(self) -> bool:
        """Return whether the recipe emulates low precision: its rounding without its speed."""
        return self.capabilities == EVERY

    def runs_on(self, capability: Version) -> bool:
        """Return whether a GPU of this compute capability supports the recipe."""
        least, beyond = self.capabilities
        return not self.is_emulated and least <= capability < beyond


class LinearLayer(NamedTuple):
    """Linear layer of a block: number of the block, name in the block, and features."""

    block: int
    name: str
    inputs: int
    outputs: int


class Library(NamedTuple):
    """Library that converts linear layers: a row of `neobert.precision.libraries`.

    Attributes:
        name: name of its section, and of its folder next to this file, in which `convert.py` has the function
            `convert_layer(section, layer, seed)`.
        about: description of its section.
        section: dataclass of its keys.
        recipes: by the values of the key `recipe`.
        package: name of the distribution.
        oldest: oldest release that is accepted; empty: any.
        install: command that installs it.
        gathers_key: key with which FSDP2 gathers converted weights in low precision; its folder then has the
            module `shards`. Empty: it does not convert sharded weights.
    """

    name: str
    about: str
    section: type[Any]
    recipes: Mapping[str, LowPrecisionRecipe]
    package: str
    install: str
    oldest: str = ""
    gathers_key: str = ""


class Conversion(NamedTuple):
    """Library that a run enables, and the section of its keys in the run's config."""

    library: Library
    section: Any

    @property
    def name(self) -> str:
        """Return the name of the recipe, the value of the section's key `recipe`."""
        return str(self.section.recipe)

    @property
    def recipe(self) -> LowPrecisionRecipe:
        """Return the requirements of the recipe that the section names."""
        return self.library.recipes[self.name]

    @property
    def gathers_low_precision(self) -> bool:
        """Return whether FSDP2 gathers converted weights in low precision."""
        name = self.library.gathers_key
        return name in self.recipe.reads and bool(getattr(self.section, name))

    @property
    def disable_hint(self) -> str:
        """Return the edit that disables the library."""
        return f"set {self.key('enable')} to false"

    def key(self, name: str) -> str:
        """Return the dotted config key of a key in the section, such as `torchao.recipe`."""
        return f"{self.library.name}.{name}"

    def unread_keys(self) -> Iterator[tuple[str, str]]:
        """Yield (key, recipe that reads it) for each set key that this recipe does not read."""
        readers = {key: name for name, row in self.library.recipes.items() for key in row.reads}
        defaults = self.library.section()
        for key, name in sorted(readers.items()):
            if key not in self.recipe.reads and getattr(self.section, key) != getattr(defaults, key):
                yield key, name

    def select_layers(self, layers: Sequence[LinearLayer]) -> list[LinearLayer]:
        """Return the layers to convert, given all layers in the order in which they run.

        Excluded are layers that `filter_fqns` matches and, with `skip_first_last_linear`, the two ends.
        """
        ends = {id(layers[0]), id(layers[-1])} if self.section.skip_first_last_linear and layers else set()
        return [
            each
            for each in layers
            if id(each) not in ends and not any(text in each.name for text in self.section.filter_fqns)
        ]


def list_linear_layers(shape: ModelShape) -> Iterator[LinearLayer]:
    """Yield the linear layers of all blocks of a model, in the order in which they run."""
    for block in range(shape.num_layers):
        for name, (inputs, outputs, _) in shape.linear_layers.items():
            yield LinearLayer(block, name, inputs, outputs)
