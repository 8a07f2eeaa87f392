"""The rules, one module a family. Importing this package registers all of them."""

from validators.rules import (  # noqa: F401
    att,
    att_kernels,
    bud,
    cfg,
    cfg_file,
    cfg_idle,
    ckp,
    ckp_host,
    dat,
    gpu,
    hst,
    hst_environment,
    mem,
    mod,
    opt,
    pre,
    sch,
)
