"""`submit`: check a run here, write its batch job, and queue it."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from launcher.commands import several_options, sweep, sweep_search, train
from launcher.commands.selection import Selection
from launcher.commands.sweep_checks import check_points
from launcher.commands.sweep_results import predictions_with_totals
from launcher.io.files import make_folder, require_writable, write_text
from launcher.preflight.examination import judge_dry_run
from launcher.process.trainer_process import Topology
from launcher.report.formats.text import render as findings_text
from launcher.run.batch import kubernetes, skypilot, slurm
from launcher.run.batch.request import BatchRequest
from launcher.rundir.directory import run_directory
from launcher.terminal import console
from neobert.errors import EXIT_OK, EXIT_USAGE, ProjectError
from neobert.printable import printable
from profiles.kept_step import KEEPS, accumulation_for
from profiles.registry import ResolvedRun
from validators.planning import plan_run
from validators.rules.host_environment import lead_for_saves_s

LEAD_S = 120
PROGRAM = "neobert-launch"
UNUSUAL = re.compile(r"[^\w.-]+")
FOLDER = ".submit"
LABEL, LONGEST_LABEL = re.compile(r"[^a-z0-9]+"), 50
"""Characters that Kubernetes names may not have; their limit of 63 characters includes a pod's number."""

TEXT = re.compile(r"([1-9]\d{0,5})(?::([1-9]\d{0,5}))?")


class BatchEngine(NamedTuple):
    """Job format of an engine, and the command that queues a job file."""

    render: Callable[[BatchRequest], str]
    command: str


ENGINES = {
    "slurm": BatchEngine(slurm.render, "sbatch"),
    "skypilot": BatchEngine(skypilot.render, "sky jobs launch"),
    "kubernetes": BatchEngine(kubernetes.render, "kubectl apply -f"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """Arguments of `submit`.

    Attributes:
        selection: the run, as stated.
        nodes: smallest and largest number of nodes; None uses distributed.nnodes.
        nproc_per_node: processes per node; None uses distributed.nproc_per_node.
        engine: key of `ENGINES`.
        options: options of sbatch.
        gpu: name of the GPU for SkyPilot; empty for the GPU of the profile.
        volumes: shared volumes as PATH=NAME.
        is_printed: print the job instead of queueing it.
        output: write the job to this file instead of queueing it.
        several: the sweep or search that is an array of jobs.
        parallel: number of points of a sweep that train at the same time (0: all), or of jobs that search.
    """

    selection: Selection
    engine: str = "slurm"
    gpu: str = ""
    image: str = ""
    volumes: tuple[str, ...] = ()
    nodes: NodeRange | None = None
    nproc_per_node: int | None = None
    time: str = ""
    signal_lead: int | None = None
    requeue_limit: int = 20
    setup: str = ""
    options: tuple[str, ...] = ()
    is_printed: bool = False
    output: Path | None = None
    several: several_options.SeveralRunsOptions = field(default_factory=several_options.SeveralRunsOptions)
    parallel: int = 0
    strict: bool = False

    @property
    def request(self) -> train.TrainRequest:
        """The launch that the job repeats."""
        least = self.nodes and self.nodes.least
        overrides = train.launch_overrides("auto", self.nproc_per_node, least)
        chosen = self.selection.with_overrides(overrides)
        return train.TrainRequest(chosen, Topology(), dry_run=True, strict=self.strict)


def run(options: SubmitOptions) -> int:
    """Check the run, write its batch job and queue it; return the exit code.

    `options.is_printed` only prints the job, and `options.output` only writes it. Nothing is written or
    queued if a check of the config, the run directory or the text fails.
    """
    _require_consistent(options)
    require_writable(options.output)
    resolved = options.request.selection.require()
    _require_on_volume(resolved, options)
    code, tasks = _check_run(resolved, options)
    if code != EXIT_OK:
        return code
    folder = run_directory(resolved)
    folder = folder.with_name(folder.name + FOLDER)
    engine = ENGINES[options.engine]
    text = engine.render(make_batch(resolved, options, folder, tasks))
    if options.is_printed:
        console.write(text.rstrip("\n"))
        if options.engine == "slurm":  # which fails a job whose log it cannot open
            logs = shlex.quote(str(folder))
            console.log(printable(f"before sbatch, create the log folder: mkdir -p {logs}"))
        return EXIT_OK
    script = options.output or _next_script_path(folder)
    if options.engine == "slurm":
        make_folder(folder)  # of the logs
    write_text(script, text)
    if options.output:
        console.write(printable(f"{script}: queue it with: {engine.command} {shlex.quote(str(script))}"))
        return EXIT_OK
    job = slurm.submit(script)
    lines = (f"job {job}: {script}", f"logs: {folder}", f"state: squeue --job {job}")
    console.write("\n".join(map(printable, lines)))
    return EXIT_OK


def make_batch(resolved: ResolvedRun, options: SubmitOptions, folder: Path, tasks: int) -> BatchRequest:
    """Return the batch job of a run. Raises ProjectError if an option of the engine is missing or invalid.

    Args:
        folder: folder of the logs.
        tasks: number of jobs of an array; 0 for a single run.
    """
    distributed = resolved.config.distributed
    name = UNUSUAL.sub("-", run_directory(resolved).name)
    if options.engine != "slurm":
        name = _resource_name(name)
    gpu = options.gpu or (resolved.profile.requires.gpu if resolved.profile else "") or ""
    log = f"{folder}/".replace("%", "%%") + ("%x-%A_%a.log" if tasks else "%x-%j.log")
    gpus = 0 if resolved.device == "cpu" else distributed.nproc_per_node
    if options.engine == "skypilot" and gpus and not gpu:
        message = "SkyPilot needs the name of a GPU, but the profile has none"
        raise ProjectError("usage", message, "add --gpu H100", "--gpu", EXIT_USAGE)
    return BatchRequest(
        name=name,
        command=_node_command(options),
        nodes=distributed.nnodes,
        sizes=options.nodes.usable_sizes(resolved) if options.nodes else (),
        gpus=gpus,
        time=options.time,
        lead_s=_warning_lead_s(resolved, options.signal_lead),
        requeue_limit=options.requeue_limit,
        setup=options.setup,
        options=_require_options(options),
        gpu=gpu,
        image=options.image,
        volumes=tuple(_parse_volume(each) for each in options.volumes),
        log=log,
        folder=os.getcwd(),
        tasks=tasks,
        is_sweep=bool(options.several.sweep),
        parallel=options.parallel if options.several.sweep else 0,
    )


def _check_run(resolved: ResolvedRun, options: SubmitOptions) -> tuple[int, int]:
    """Check the run, the points of the sweep, or the corners of the search.

    Returns the exit code and the number of jobs of the array; 0 for a single run.
    """
    several = options.several
    with redirect_stdout(sys.stderr if options.is_printed else sys.stdout):
        if several.search:
            return sweep_search.run(options.request, several, "text"), max(1, options.parallel)
        if several.sweep:
            candidates = sweep.make_candidates(
                options.request, several.sweep, allows_unequal_tokens=several.allows_unequal_tokens
            )
            return check_points(
                options.request, candidates, "text", predictions_with_totals(candidates)
            ), len(candidates)
    is_here = options.engine == "slurm"  # else the run directory is on a volume
    report = judge_dry_run(resolved, run_directory(resolved), owns_run=is_here, strict=options.strict)
    if report.exit_code != EXIT_OK:
        console.write(f"{findings_text(report)}\nthe run failed its checks: nothing was written or queued")
    elif report.findings:
        console.log(findings_text(report, quiet=True))
    return report.exit_code, 0


def _node_command(options: SubmitOptions) -> tuple[str, ...]:
    """Return the command that each node runs.

    On Slurm without --setup, which may activate another environment, it uses this environment.
    """
    own = Path(sys.executable).with_name(PROGRAM)
    is_here = options.engine == "slurm" and not options.setup and own.exists()
    words = [str(own) if is_here else PROGRAM, "train", *options.selection.as_arguments()]
    words += options.several.as_arguments
    words += ["--nproc-per-node", str(options.nproc_per_node)] if options.nproc_per_node else []
    words += ["--strict"] * options.strict
    return (*words, "--resume", "auto")


def _warning_lead_s(resolved: ResolvedRun, given: int | None) -> int:
    """Return the seconds between the warning and the end of the job, at least the time of three saves.

    Raises ProjectError if the given seconds are fewer.
    """
    needed_s = math.ceil(lead_for_saves_s(plan_run(resolved)))
    if given is not None and given < needed_s:
        message = f"a lead of {given} s is too short for three saves of this run ({needed_s} s)"
        hint = f"pass --signal-lead {needed_s} or more"
        raise ProjectError("short-lead", message, hint, "--signal-lead", EXIT_USAGE)
    return given or max(LEAD_S, needed_s)


def _require_consistent(options: SubmitOptions) -> None:
    """Raise ProjectError for an option that the engine does not support, or a missing one that it needs."""
    several_options.require_consistent(replace(options.several, parallel=options.parallel or None))
    engine, needs = options.engine, {"--volume PATH=NAME": options.volumes, "--image IMAGE": options.image}
    if engine == "slurm":
        if options.time:
            slurm.require_time(options.time)
        return
    if options.nodes and options.nodes.is_elastic:
        message = f"jobs on {engine} have a fixed number of nodes"
        raise ProjectError("usage", message, f"pass --nodes {options.nodes.least}", "--nodes", EXIT_USAGE)
    of_slurm = {"--time": options.time, "--sweep": options.several.sweep, "--search": options.several.search}
    stated = [each.partition("=")[0] for each in options.options]
    stated += [option for option, value in of_slurm.items() if value]
    if option := next(iter(stated), ""):
        hint = f"leave it out, or edit the {engine} file"
        raise ProjectError("usage", "the option applies to Slurm only", hint, option, EXIT_USAGE)
    if not (options.is_printed or options.output):
        hint = f"add --output job.yaml, then run: {ENGINES[engine].command} job.yaml"
        raise ProjectError("usage", f"submit queues on Slurm only, not on {engine}", hint, "--to", EXIT_USAGE)
    missing = [option for option, value in needs.items() if not value]
    if missing and engine == "kubernetes":
        message = "a pod needs an image, and a volume for the run directory and the data"
        raise ProjectError("usage", message, f"add {' '.join(missing)}", "--to", EXIT_USAGE)


def _require_on_volume(resolved: ResolvedRun, options: SubmitOptions) -> None:
    """Raise ProjectError if SkyPilot would write the run directory to a disk that the job loses.

    On Kubernetes, the working directory of a pod is on its volume.
    """
    folder = Path(resolved.config.trainer.output_dir)
    if options.engine == "skypilot" and not any(
        folder.is_relative_to(_parse_volume(each)[0]) for each in options.volumes
    ):
        message = f"{folder} is not on a volume and would be lost with the machine"
        hint = "add --volume /data=NAME --trainer.output_dir /data/runs/NAME"
        raise ProjectError("usage", message, hint, "trainer.output_dir", EXIT_USAGE)


def _parse_volume(text: str) -> tuple[str, str]:
    """Split PATH=NAME into the absolute path and the name. Raises ProjectError for any other text."""
    path, _, name = text.partition("=")
    if not (path.startswith("/") and name):
        message, hint = f"{text!r} is not of the form PATH=NAME", "write, for example, --volume /data=NAME"
        raise ProjectError("usage", message, hint, "--volume", EXIT_USAGE)
    return path, name


def _resource_name(name: str) -> str:
    """Return a name for SkyPilot and Kubernetes: a letter, then lower-case letters, digits and hyphens."""
    label = LABEL.sub("-", name.lower()).strip("-")
    return (label if label[:1].isalpha() else f"run-{label}")[:LONGEST_LABEL].strip("-")


def _require_options(options: SubmitOptions) -> tuple[str, ...]:
    """Return the options of sbatch. Raises ProjectError unless each is a single option."""
    for option in options.options:
        if not option.startswith("-") or "\n" in option:
            message = f"{option!r} is not a single option of sbatch"
            raise ProjectError(
                "usage",
                message,
                "pass one option per --extra, such as --extra=--exclusive",
                "--extra",
                EXIT_USAGE,
            )
    return options.options


def _next_script_path(folder: Path) -> Path:
    """Return the path of the next script, with the first free number; earlier scripts are kept."""
    number = 1
    while (path := folder / f"{number}.sbatch").exists():
        number += 1
    return path


class NodeRange(NamedTuple):
    """Smallest and largest number of nodes for a job."""

    least: int
    most: int

    @property
    def is_elastic(self) -> bool:
        """Return whether the job may get different numbers of nodes."""
        return self.least < self.most

    def usable_sizes(self, run: ResolvedRun) -> tuple[int, ...]:
        """Return the numbers of nodes among which the microbatches of a step can be divided equally.

        Empty for a fixed number of nodes. Raises ProjectError if the largest number is not among them, or if
        trainer.keep_step is false.
        """
        if not self.is_elastic:
            return ()
        if not run.config.trainer.keep_step:
            message = f"another number of nodes would change the rows of a step, because {KEEPS} is false"
            raise ProjectError(
                "usage",
                message,
                f"add --{KEEPS} true, or pass a single number of nodes",
                "--nodes",
                EXIT_USAGE,
            )
        trainer, nproc = run.config.trainer, run.config.distributed.nproc_per_node
        step = trainer.gradient_accumulation_steps * nproc * self.least
        accumulation_for(step, nproc, self.most)
        return tuple(n for n in range(self.least, self.most + 1) if step % (n * nproc) == 0)


def parse_nodes(text: str) -> NodeRange:
    """Parse N or MIN:MAX. Raises ProjectError for any other text."""
    match = TEXT.fullmatch(text)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 0 < least <= most:
        message = f"{text!r} is neither a number of nodes nor a range"
        raise ProjectError("usage", message, "pass --nodes 2 or --nodes 2:4", "--nodes", EXIT_USAGE)
    return NodeRange(least, most)
