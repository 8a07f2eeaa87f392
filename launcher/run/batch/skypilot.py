"""Task for SkyPilot's managed jobs: `sky jobs launch FILE`.

SkyPilot starts a job again if it has lost a node or if the job exits with 75; any other exit code ends it.
"""

from __future__ import annotations

from typing import Any

from launcher.run.batch.request import RENDEZVOUS_PORT, BatchRequest, dump
from neobert.errors import EXIT_PREEMPTED

RUN = """\
nodes=(--nnodes "$SKYPILOT_NUM_NODES")
if [ "$SKYPILOT_NUM_NODES" -gt 1 ]; then
  head=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)
  nodes+=(--node-rank "$SKYPILOT_NODE_RANK" --rdzv-endpoint "$head:{port}")
fi
exec {line} "${{nodes[@]}}"
"""
HEAD = "# Task of `neobert-launch submit`: sky jobs launch FILE\n"


def render(request: BatchRequest) -> str:
    """Return the task."""
    resources: dict[str, Any] = {"accelerators": f"{request.gpu}:{request.gpus}"} if request.gpus else {}
    if request.image:
        resources["image_id"] = f"docker:{request.image}"
    resources["job_recovery"] = {"max_restarts_on_errors": 0, "recover_on_exit_codes": [EXIT_PREEMPTED]}
    task: dict[str, Any] = {
        "name": request.name,
        "num_nodes": request.nodes,
        "workdir": ".",
        "resources": resources,
        "volumes": dict(request.volumes),
    }
    text = RUN.format(port=RENDEZVOUS_PORT, line=request.line)
    task["run"] = f"{request.setup}\n{text}" if request.setup else text
    return HEAD + dump({key: value for key, value in task.items() if value})
