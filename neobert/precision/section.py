"""Keys that the sections of all libraries of low precision have."""

from dataclasses import dataclass

from neobert.schema_fields import ConfigSection, NonEmpty, key


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ConversionConfig(ConfigSection):
    """8- or 4-bit matrix products of the blocks' linear layers; weights stay fp32."""

    enable: bool = key(
        False, "Convert the linear layers of the blocks. The blocks then run as torch modules."
    )
    filter_fqns: tuple[NonEmpty, ...] = key(
        (), "Linear layers whose name in the block contains one of these texts stay in bf16."
    )
    skip_first_last_linear: bool = key(
        True, "Leave the first linear layer of the first block, and the last one of the last block, in bf16."
    )
