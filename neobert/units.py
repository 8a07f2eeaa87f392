"""Units of memory and time. `_mib` is bytes // 2**20, `_gib` is `_mib` / 1024."""

BYTES_PER_MIB = 2**20
MIB_PER_GIB = 1024
SECONDS_PER_MINUTE = 60
SECONDS_PER_HOUR = 3600
