"""Recipe of Quartet-II. Imports no torch. Its kernels are built for compute capability 12.0 (sm120a)."""

from __future__ import annotations

from neobert.precision.library import CONSUMER_BLACKWELL, Library, LowPrecisionRecipe
from neobert.precision.quartet2.section import Quartet2Config

QUARTET2 = Library(
    name="quartet2",
    about="Low-precision matrix products by Quartet-II.",
    section=Quartet2Config,
    recipes={
        "quartet_ii": LowPrecisionRecipe(CONSUMER_BLACKWELL, 128, rate=8.0),
    },
    package="quartet2",
    install="pip install --no-build-isolation 'git+https://github.com/IST-DASLab/qutlass.git' "
    "'git+https://github.com/IST-DASLab/Quartet-II.git#subdirectory=kernels'",
)
