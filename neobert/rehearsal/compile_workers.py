"""Worker processes of torch's compiler: importing this module starts them.

torch starts them with the first compilation, and compiles in its own process until they have imported torch.
"""

from __future__ import annotations

from torch._inductor.async_compile import maybe_warm_pool

maybe_warm_pool()
