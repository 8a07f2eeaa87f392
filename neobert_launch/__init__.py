"""Python interface of neobert-launch: the commands, as functions and objects.

```python
import neobert_launch as nl

run = nl.load_run("run.yaml", values={"optimizer.lr": 1e-3})
print(run.plan().step_time_s)
done = run.train()                      # preflight, then training in a child process
done.metrics().plot(y="train/loss")
nl.predict(done.path, ["a fine film"])
```

Importing it imports no torch. Commands run in child processes, with the same checks and results as on the
command line. Errors are `ProjectError`, with the place and a hint.
"""

from neobert.errors import ProjectError
from neobert_launch.directory import RunDirectory
from neobert_launch.model import encode, export, predict
from neobert_launch.run import Finding, Run, Verdict, load_run

__all__ = [
    "Finding",
    "ProjectError",
    "Run",
    "RunDirectory",
    "Verdict",
    "encode",
    "export",
    "load_run",
    "predict",
]
