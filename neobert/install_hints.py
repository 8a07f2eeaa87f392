"""How to install the kernels that are not required: one line for each extra, which every hint repeats.

The lines name packages, not this project: they then hold in an environment that lacks it, too.
"""

from __future__ import annotations

from neobert.kernel_table import OPTIONAL_PACKAGES, install_line

INSTALL = {package.extra: install_line(package) for package in OPTIONAL_PACKAGES if package.extra}
