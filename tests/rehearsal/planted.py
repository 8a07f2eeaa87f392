"""A rehearsal's child with a fault: `python -m planted NAME RESOLVED FOLDER`, PLANTED says which."""

import os
import sys
import time
from pathlib import Path

from neobert.errors import ProjectError, write_error_file

name, _, folder = sys.argv[1:]
(Path(folder) / f"{name}_stage_rank0").write_text("step 3 of 28", encoding="utf-8")
if os.environ["PLANTED"] == "hangs":
    time.sleep(600)
if os.environ["PLANTED"] in ("NAN001", "SPK001", "TRN003", "EXP004"):
    write_error_file(ProjectError(os.environ["PLANTED"], "it leapt", "give another", "nowhere"))
    sys.exit(4)
print("the model is not there")
sys.exit(5)
