"""Job for Kubernetes, which needs no operator: `kubectl apply -f FILE`.

An indexed Job: pod K is node K. The exit code decides about a retry (`podFailurePolicy`), which belongs to a
Job and not to a TrainJob of Kubeflow. Evictions and lost nodes do not count as retries.
"""

from __future__ import annotations

from typing import Any

from launcher.run.batch.request import RENDEZVOUS_PORT, BatchRequest, dump_yaml
from neobert.errors import (
    EXIT_CHECK_FAILED,
    EXIT_CHECK_UNKNOWN,
    EXIT_DO_NOT_REQUEUE,
    EXIT_PREEMPTED,
    EXIT_USAGE,
)

CONTAINER, SHARED_MEMORY = "train", "shared-memory"
NODE = '--nnodes {nodes} --node-rank "$JOB_COMPLETION_INDEX" --rdzv-endpoint {name}-0.{name}:{port}'
HEAD = "# Job of `neobert-launch submit`: kubectl apply -f FILE\n"
# Launchers of several nodes exit with 4 if another node is lost: that is retried too.
FINAL = [EXIT_CHECK_FAILED, EXIT_USAGE, EXIT_CHECK_UNKNOWN, EXIT_DO_NOT_REQUEUE]


def render(request: BatchRequest) -> str:
    """Return the Job as YAML; for several nodes, also the Service that resolves the first node's name."""
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": request.name},
        "spec": {
            "completions": request.nodes,
            "parallelism": request.nodes,
            "completionMode": "Indexed",
            "backoffLimit": request.requeue_limit,
            "podFailurePolicy": {"rules": _failure_rules(request)},
            "template": {"spec": _pod_template(request)},
        },
    }
    return HEAD + (dump_yaml(job) if request.nodes == 1 else dump_yaml(_service(request), job))


def _failure_rules(request: BatchRequest) -> list[dict[str, Any]]:
    is_final = (
        {"operator": "In", "values": FINAL}
        if request.nodes > 1
        else {"operator": "NotIn", "values": [EXIT_PREEMPTED]}
    )
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"containerName": CONTAINER, **is_final}},
    ]


def _pod_template(request: BatchRequest) -> dict[str, Any]:
    volumes = [
        {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}}
        for number, (_, claim) in enumerate(request.volumes)
    ]
    mounts = [
        {"name": f"volume-{number}", "mountPath": path} for number, (path, _) in enumerate(request.volumes)
    ]
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": request.image,
        "command": ["/bin/bash", "-c", _pod_script(request)],
        "workingDir": mounts[0]["mountPath"],
        "volumeMounts": [*mounts, {"name": SHARED_MEMORY, "mountPath": "/dev/shm"}],
    }
    if request.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": request.gpus}}
    return {
        **({"subdomain": request.name} if request.nodes > 1 else {}),
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": request.lead_s,
        "containers": [container],
        "volumes": [*volumes, {"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory"}}],
    }


def _pod_script(request: BatchRequest) -> str:
    node = NODE.format(nodes=request.nodes, name=request.name, port=RENDEZVOUS_PORT)
    line = f"exec {request.line} {node}\n" if request.nodes > 1 else f"exec {request.line}\n"
    return f"{request.setup}\n{line}" if request.setup else line


def _service(request: BatchRequest) -> dict[str, Any]:
    """Return the headless Service; its pod names resolve before the pods are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": request.name},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": request.name},
        },
    }
