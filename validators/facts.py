"""Facts: immutable measurements of this machine, repository and data, which can be saved as JSON.

A group is None if its probe could not measure it; `probes` has the reason. Rules read facts and never probe.
The groups are declared in other modules, which a static check does not import. Sizes are in MiB, times in
seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from validators.facts_gpu import GpuFacts, GpuHealthFacts, GpuLoadFacts, GpuLogFacts
    from validators.facts_host import (
        DataFacts,
        DiskFacts,
        GitFacts,
        HostFacts,
        OutputFacts,
        ResumeFacts,
        SchedulerFacts,
        SoftwareFacts,
        TrackerFacts,
    )
    from validators.facts_numerics import DeviceFacts, NumericsFacts
    from validators.facts_rehearsal import RehearsalFacts
    from validators.facts_run import (
        DistributedFacts,
        ImportFacts,
        InspectionFacts,
        PluginFacts,
        PreparedFacts,
    )
    from validators.facts_text import TextFacts


SCHEMA_VERSION = 1
FOREIGN_TREE = "model_checkpoints"
"""Folder of the checkpoints of earlier NeoBERT trainers, below the output directory."""
PLUGGED_SOURCE = "plugins.dataset of another run is not imported"
"""Reason why the text of an earlier run cannot be read if a plug-in returned it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecord:
    """Outcome of one probe; `reason` is why the measurement is missing, empty if `status` is ok."""

    name: str
    status: Literal["ok", "unsupported", "incomplete", "timeout"]
    reason: str = ""
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFor:
    """Config that facts were measured for; `keys` are its keys that affect measurements, with JSON values."""

    config_digest: str
    keys: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All measurements of the probes; empty for a static check.

    `text` has an entry per local text; recordings of earlier versions have none.
    """

    schema_version: int = SCHEMA_VERSION
    recorded_utc: str = ""
    measured_for: MeasuredFor | None = None
    probes: tuple[ProbeRecord, ...] = ()
    software: SoftwareFacts | None = None
    git: GitFacts | None = None
    host: HostFacts | None = None
    disk: DiskFacts | None = None
    output: OutputFacts | None = None
    resume: ResumeFacts | None = None
    tracker: TrackerFacts | None = None
    scheduler: SchedulerFacts | None = None
    data: DataFacts | None = None
    text: tuple[TextFacts, ...] | None = ()
    gpus: tuple[GpuFacts, ...] | None = None
    gpu_health: tuple[GpuHealthFacts, ...] | None = None
    gpu_log: GpuLogFacts | None = None
    gpu_load: tuple[GpuLoadFacts, ...] | None = None
    imports: ImportFacts | None = None
    distributed: DistributedFacts | None = None
    inspection: InspectionFacts | None = None
    numerics: NumericsFacts | None = None
    devices: tuple[DeviceFacts, ...] | None = None
    rehearsal: RehearsalFacts | None = None
    plugins: PluginFacts | None = None

    @property
    def prepared(self) -> PreparedFacts | None:
        """Facts of the prepared data, or None if it was not inspected or could not be prepared."""
        return None if self.inspection is None else self.inspection.prepared

    def was_probed(self, group: str) -> bool:
        """Return whether a probe for this group ran, even if it failed."""
        return any(probe.name == group for probe in self.probes)

    def reason_missing(self, group: str) -> str:
        """Return the reason why a group of facts is missing, as reported by its probe."""
        for probe in self.probes:
            if probe.name == group:
                return f"{probe.status}: {probe.reason}"
        return "was not probed"


NO_FACTS = Facts()
