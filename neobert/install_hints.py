"""How to install the kernels that are not required: one line for each extra, which every hint repeats.

The lines name packages, not this project: they then hold in an environment that lacks it, too. Those of
`neobert/model` stand there as well, because its files travel without this one.
"""

from __future__ import annotations

INSTALL = {
    "flash": "pip install --no-build-isolation 'flash-attn>=2.8'",
    "fused": "pip install 'quack-kernels>=0.6' 'flash-attn-4>=4.0.0b1'",
    "liger": "pip install 'liger-kernel>=0.8'",
}
"""flash-attn has to be built against the torch that is installed, hence no isolation."""
