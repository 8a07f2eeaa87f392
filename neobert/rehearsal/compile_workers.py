"""Start of torch's compile worker processes, on import of this module.

Otherwise torch starts them at the first compilation, and compiles in its own process until they are ready.
"""

from __future__ import annotations

from torch._inductor.async_compile import maybe_warm_pool

maybe_warm_pool()
