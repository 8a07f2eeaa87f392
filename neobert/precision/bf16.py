"""bf16 by autocast."""

from neobert.precision.recipe import Recipe

BF16 = Recipe(
    dtype="bfloat16",
    activation_bytes=2,
    weight_copy_bytes=2,
    min_capability=(8, 0),
    gathered_dtype="bfloat16",
    reduced_dtype="float32",
)
