"""Python interface of neobert-launch: the commands, as functions and objects.

```python
import neobert_launch as nl

run = nl.load_run("run.yaml", values={"optimizer.lr": 1e-3})
print(run.plan().step_time_s)
done = run.train()                      # preflight, then training in a child process
done.metrics().plot(y="train/loss")
nl.predict(done.path, ["a fine film"])
```

Importing it imports no torch. What it starts runs in child processes, with the checks and the results of the
commands. Errors are `ProjectError`, with the place and the way out.
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
