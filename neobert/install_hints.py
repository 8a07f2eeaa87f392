"""Install commands of optional kernels: one line per extra, shared by all hints.

The lines name packages, not this project: they then hold in an environment that lacks it, too.
"""

from __future__ import annotations

from neobert.kernel_table import OPTIONAL_PACKAGES, install_line

INSTALL = {package.extra: install_line(package) for package in OPTIONAL_PACKAGES if package.extra}
