"""Conversion factors of memory and time. Names ending in `_mib` are bytes // 2**20, in `_gib` MiB / 1024."""

BYTES_PER_MIB = 2**20
MIB_PER_GIB = 1024
SECONDS_PER_MINUTE = 60
SECONDS_PER_HOUR = 3600
