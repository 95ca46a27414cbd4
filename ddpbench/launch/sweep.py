"""A sweep from an experiment to its table: plans, proves, runs round after round, stops, can be resumed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from ddpbench.errors import FabricError, IdentityError, MachineError, OutputError, RequestError, WorkloadError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.estimate import SERVER_START_S, about, proof_s
from ddpbench.launch.fabrics import Fabrics, check_drawable
from ddpbench.launch.listener import Listener
from ddpbench.launch.memory import memory_limit, within_memory
from ddpbench.launch.merge import refuse_merged
from ddpbench.launch.own_workloads import with_located
from ddpbench.launch.plan import LaunchPlan, Plan, make_plan, plan_launch, proof_key, skip_reasons, to_prove
from ddpbench.launch.watch import LaunchRunner
from ddpbench.machine.claim import claimed
from ddpbench.machine.disturbance import own_environment_allows_sharing
from ddpbench.machine.finished import Key, finished_launches, given_up
from ddpbench.machine.hardware import Hardware, read_hardware
from ddpbench.machine.identity import check_identity, machine_record
from ddpbench.machine.server import ServerProcess
from ddpbench.machine.sessions import Session, note_session
from ddpbench.machine.trial import inspect_own, told
from ddpbench.records import Block, LaunchOutcome, RunDir, read_launch, write_atomically
from ddpbench.records.heartbeat import Pulse
from ddpbench.records.plan import read_plan
from ddpbench.records.rundir import Purpose
from ddpbench.spec import Case, Devices, Experiment, PlannedCase, expand, left_out, load_experiment, resolve

BF16_CAPABILITY = 8.0
"""From this compute capability on GPUs multiply in bf16; torch emulates it on older ones."""
_OWN_FILES = {
    ".lock",
    ".writable",
    "cases",
    "server.log",
    "fabric.log",
    "fabric.json",
    "probe.json",
    "probe.log",
    "machine.json",
    "experiment.toml",
}
"""What a sweep that ended before its plan stood may leave in its directory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepRequest:
    """What to sweep and where to. `experiment` is a TOML file, or a run directory to resume."""

    experiment: Path
    overrides: Sequence[str] = ()
    out: Path | None = None
    retry_failed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A request understood: everything that can be refused has been looked at, and nothing started."""

    experiment: Experiment
    plan: Plan
    hardware: Hardware
    devices: Devices
    run: RunDir
    resumes: bool
    draws_seed: bool
    """The order's seed was drawn just now: another run of the experiment gets another one."""
    retry_failed: bool
    notes: tuple[str, ...] = ()
    """What of the request is not run, and why."""


@dataclass(slots=True)
class SweepResult:
    """How a sweep ended."""

    run: RunDir
    stop_reason: str = ""
    wall_s: float = 0.0
    measured_s: float = 0.0
    launches: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def measured_share(self) -> float | None:
        """Share of this session's wall time spent in warm-up and measured steps."""
        return self.measured_s / self.wall_s if self.wall_s else None


def prepare(request: SweepRequest) -> Prepared:
    """Reads, validates and plans; starts nothing but, beside GPUs, a probe of what torch can use.

    Raises:
        RequestError: the request cannot be met; the message says why.
    """
    source, out = request.experiment, request.out
    if source.is_dir():
        out, source = out or source, RunDir(source).experiment
    elif source.name == "experiment.toml" and (source.parent / "plan.json").is_file() and out is None:
        out = source.parent
    if out is not None:
        refuse_merged(RunDir(out))
    catalog = TableCatalog(source.parent)
    experiment = with_located(load_experiment(source, catalog, request.overrides), source.parent)
    _check_launcher(experiment, request.experiment)
    if importlib.util.find_spec("torch") is None:
        raise MachineError("torch is not installed in this environment: pip install torch")
    hardware = read_hardware()
    devices = usable_devices(hardware)
    _check_devices(experiment, devices)
    note = left_out(experiment)
    experiment = resolve(experiment, devices)
    planned = expand(experiment, catalog, devices)
    memory = memory_limit()
    cases = [
        within_memory(within_precision(within_gpus(entry, devices), devices), memory) for entry in planned
    ]
    if all(entry.skip_reason is not None for entry in cases):
        raise RequestError(f"{source}: no case of this experiment can run here\n{skip_reasons(cases)}")
    _check_checkpoint_dirs(cases)
    check_drawable(entry.case for entry in cases if entry.skip_reason is None)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    run = RunDir(out if out is not None else Path("reports") / f"{experiment.name}-{stamp}")
    resumes = run.plan.exists()
    seeded = experiment.budget.seed is not None
    if not resumes and run.path.is_dir() and any(path.name not in _OWN_FILES for path in run.path.iterdir()):
        raise OutputError(f"{run.path} holds other files and is not a run directory; choose another --out")
    stored = None
    with suppress(
        IdentityError
    ):  # a damaged plan is refused when the run is worked on, which its lock decides first
        stored = read_plan(run) if resumes else None
    plan = make_plan(experiment, cases, stored)
    return Prepared(
        experiment=plan.experiment,
        plan=plan,
        hardware=hardware,
        devices=devices,
        run=run,
        resumes=resumes,
        draws_seed=not seeded and not resumes,
        retry_failed=request.retry_failed,
        notes=(note,) if note else (),
    )


def usable_devices(hardware: Hardware) -> Devices:
    """Return the devices torch can use: without a sign of a GPU there is nothing to ask a rank about."""
    if not hardware.may_have_gpus:
        return hardware.devices(gpus=0)
    with tempfile.TemporaryDirectory(prefix="ddpbench-") as folder:
        path = Path(folder)
        with ServerProcess({"OPENBLAS_NUM_THREADS": "1"}, path / "server.log") as server:
            probe = server.probe(path)
    devices = hardware.devices(gpus=len(probe["gpus"]))
    old = [gpu for gpu in probe["gpus"] if float(gpu["capability"]) < BF16_CAPABILITY]
    return replace(devices, without_bf16=f"{old[0]['name']} has {old[0]['capability']}") if old else devices


def _check_checkpoint_dirs(cases: Sequence[PlannedCase]) -> None:
    """Refuses a directory for snapshots that is none or cannot be written, before anything is measured.

    Raises:
        OutputError: it is not there, or may not be written.
    """
    for name in dict.fromkeys(entry.case.checkpoint_dir for entry in cases):
        if name and not (Path(name).is_dir() and os.access(name, os.W_OK | os.X_OK)):
            what = "may not be written" if Path(name).is_dir() else "is not a directory"
            raise OutputError(
                f"base.checkpoint_dir = {name!r} {what}: make it, name another, or leave the setting out, and "
                "snapshots go into the run directory"
            )


def _check_launcher(experiment: Experiment, source: Path) -> None:
    """Refuses to sweep what another launcher is to start.

    Raises:
        RequestError: a case has launcher = "torchrun".
    """
    if "torchrun" in experiment.axes.get("launcher", [experiment.base.launcher]):
        nodes = "" if source.is_dir() else " --nodes hostA,hostB --ranks-per-node N"
        raise RequestError(
            f'{source}: with launcher = "torchrun" you start the ranks: ddpbench plan {source}{nodes} prints '
            "the lines for your nodes"
        )


def _check_devices(experiment: Experiment, devices: Devices) -> None:
    """Refuses what was asked for by name and is not here at all; single cases that do not fit are skipped.

    Raises:
        MachineError: it is not here.
    """
    if devices.gpus:
        return
    base, axes = experiment.base, experiment.axes
    if "cuda" in axes.get("device", [base.device]):
        raise MachineError(
            'device = "cuda": there is no GPU here that torch can use; set it to "cpu" or "auto"'
        )
    if axes.get("backend", [base.backend]) == ["nccl"] and not experiment.emulates:
        raise MachineError(
            'backend = "nccl": nccl moves data between GPUs only, and there is none here that torch can use; '
            'set it to "gloo" or "auto"'
        )


def within_gpus(entry: PlannedCase, devices: Devices) -> PlannedCase:
    """Return the planned case, skipped with a reason if it needs more GPUs than there are."""
    case = entry.case
    if entry.skip_reason is not None or case.device != "cuda" or case.world_size <= devices.gpus:
        return entry
    have = f"{devices.gpus} GPU{'s' if devices.gpus != 1 else ''}" if devices.gpus else "no GPU torch can use"
    reason = f"needs {case.world_size} GPU{'s' if case.world_size != 1 else ''}, one a rank; here is {have}"
    return PlannedCase(case=case, skip_reason=reason, added_as_baseline=entry.added_as_baseline)


def within_precision(entry: PlannedCase, devices: Devices) -> PlannedCase:
    """Return the planned case, skipped with a reason if its device or number type has no such precision."""
    case = entry.case
    if entry.skip_reason is not None or case.precision == "full":
        return entry
    reason = ""
    if case.dtype != "float32":
        reason = f'autocast leaves {case.dtype} as it is: {case.precision} needs dtype = "float32"'
    elif case.precision == "bf16" and case.device == "cuda" and devices.without_bf16:
        reason = f"bf16 needs compute capability {BF16_CAPABILITY:.1f} (Ampere); {devices.without_bf16}"
    return replace(entry, skip_reason=reason) if reason else entry


class Sweep:
    """Carries out a prepared request."""

    def __init__(self, prepared: Prepared, listener: Listener) -> None:
        self._prepared = prepared
        self._plan = prepared.plan
        self._run = prepared.run
        self._listener = listener
        self._catalog = TableCatalog()
        self._budget = prepared.experiment.budget
        self._shared = own_environment_allows_sharing()
        self._session = Session.begin()
        self._runner = LaunchRunner(
            self._run,
            hang_timeout_s=self._budget.hang_timeout,
            hang_setting="budget.hang_timeout",
            shared=self._shared,
            session=self._session.id,
        )
        self._gpu_addresses: list[str | None] = []
        self._took_s = self._guessed_s = 0.0
        self._own_s: dict[str, list[float]] = {}
        """How long each case's launches took, by its id."""
        self._outcomes: dict[Key, LaunchOutcome] = {}
        self._damaged: set[Key] = set()
        self._identified = False
        self._fabrics = Fabrics(self._run, listener.preparing)
        self.result = SweepResult(self._run)

    def run(self) -> SweepResult:
        """Runs to the stopping rule; on an interruption what was finished stays, and the rest can be resumed.

        Raises:
            RequestError: the output cannot be used, or belongs to another machine or experiment.
            LaunchError: ranks cannot be started or their records not be written.
        """
        started = time.monotonic()
        claim = nullcontext() if self._shared else claimed(self._prepared.hardware.cores)
        if self._prepared.resumes:
            self._run.read_json(self._run.plan)  # a damaged or newer one is refused before anything starts
            if self._run.packed.exists() and not self._run.cases.exists():
                read_plan(self._run)  # unpacks its records, before there is a folder for new ones
        with claim:
            self._run.create()
            with self._run.locked(), self._fabrics:
                try:
                    self._work(started)
                except KeyboardInterrupt:
                    self.result.stop_reason = "interrupted"
                    raise
                except WorkloadError:
                    if not self._prepared.resumes:
                        shutil.rmtree(
                            self._run.path, ignore_errors=True
                        )  # nothing but what it has just begun
                    raise
                except FabricError:
                    if (
                        not self._prepared.resumes and not self._outcomes
                    ):  # so that another try is not a resume
                        for path in (self._run.plan, self._run.experiment, self._run.machine):
                            path.unlink(missing_ok=True)
                        self._identified = False
                    raise
                finally:
                    self.result.wall_s = time.monotonic() - started
                    if self._identified:
                        self._note_session()
        return self.result

    def _work(self, started: float) -> None:
        self._read_outcomes()
        unproved = [entry for entry in self._plan.runnable if not self._finished(entry, "proof", 0)]
        left = {
            entry.case.case_id: self._unfinished(entry, self._budget.rounds_min)
            for entry in self._plan.runnable
            if not self._given_up(entry)
        }
        estimate = self._plan.estimate_s(self._budget.rounds_min, left, to_prove(unproved))
        self._listener.planned(self._plan, self._run, len(self._outcomes), estimate)
        if estimate > self._budget.total:
            goal = self._budget.goal
            lower = "measured_s, " if goal is None else "until_s, measured_s, "
            self._warn(
                f"{self._budget.rounds_min} rounds take {about(self._budget)} {estimate / 60:.0f} min, and "
                f"budget.total is less; it will run anyway: lower {lower}rounds_min or the number of cases to "
                "stay within it"
            )
        self._listener.preparing("starting torch")
        with _Servers(self._run.path / "server.log") as servers:
            first = plan_launch(
                self._plan.runnable[0].case,
                "proof",
                0,
                directory=self._run.launch(self._plan.runnable[0].case.case_id, "proof"),
                hardware=self._prepared.hardware,
                catalog=self._catalog,
            )
            self._identify(servers.of(first.server_env))
            if self._prepared.retry_failed:
                self._set_failed_aside()
                unproved = [entry for entry in self._plan.runnable if not self._finished(entry, "proof", 0)]
            self._fabrics.make(
                entry.case
                for entry in self._plan.runnable
                if not self._given_up(entry) and self._unfinished(entry, self._budget.rounds_min)
            )
            for entry in unproved:
                if not self._take_proof(entry):
                    self._launch(entry, "proof", 0, servers)
            for number in range(self._budget.rounds_max):
                reason = self._stop_reason(number, started)
                if reason:
                    self.result.stop_reason = reason
                    return
                self._round(number, servers)
        self.result.stop_reason = "rounds_max"

    def _take_proof(self, entry: PlannedCase) -> bool:
        """Gives a case the proof of one that differs from it in nothing but its links' rates, if there is one.

        The records keep the name of the case that was launched.
        """
        case_id = entry.case.case_id
        for other in self._plan.runnable:
            outcome = self._outcomes.get((other.case.case_id, "proof", 0))
            if outcome is None or outcome.status != "ok" or proof_key(other.case) != proof_key(entry.case):
                continue
            target = self._run.launch(case_id, "proof").path
            beside = target.with_name(".proof")
            shutil.rmtree(beside, ignore_errors=True)  # of a sweep that was killed right here
            shutil.copytree(self._run.launch(other.case.case_id, "proof").path, beside)
            if target.exists():
                self._run.set_aside(self._run.launch(case_id, "proof"))
            beside.rename(target)
            self._outcomes[case_id, "proof", 0] = outcome
            return True
        return False

    def _identify(self, server: ServerProcess) -> None:
        """Writes machine.json, plan.json and experiment.toml, or compares them with what is there."""
        probe = server.probe(self._run.path)
        (self._run.path / "probe.json").unlink(missing_ok=True)
        (self._run.path / "probe.log").unlink(missing_ok=True)
        self._gpu_addresses = [gpu["pci"] for gpu in probe["gpus"]]
        toml = self._prepared.experiment.to_toml()
        found = machine_record(self._prepared.hardware, probe, toml, self._plan.cases)
        own = inspect_own(server, [entry.case for entry in self._plan.runnable], self._run.path)
        found["context"]["own_workloads"] = dict(own)
        for name, facts in own.items():
            self._listener.looked_at(told(name, facts))
        if self._prepared.resumes:
            check_identity(self._run.read_json(self._run.machine), found, self._run.path)
            self._check_cases()
        else:
            write_atomically(self._run.machine, json.dumps(found, indent=1) + "\n")
            write_atomically(self._run.experiment, toml)
            write_atomically(self._run.plan, self._plan.dumps())  # last: with it the directory can be resumed
        self._identified = True

    def _check_cases(self) -> None:
        """Compares the cases planned now with those planned before, whose ids their contents make.

        Raises:
            IdentityError: they differ.
        """
        stored = set(read_plan(self._run).ids)
        now = {entry.case.case_id for entry in self._plan.cases}
        if stored != now:
            raise IdentityError(
                f"{self._run.path} was planned with other cases: {_few(stored - now) or 'none'} not planned now, "
                f"{_few(now - stored) or 'none'} not then; give another --out"
            )

    def _read_outcomes(self) -> None:
        """What earlier sessions finished."""
        if not self._prepared.resumes:
            return
        ids = [entry.case.case_id for entry in self._plan.runnable]
        self._outcomes, self._damaged = finished_launches(self._run, ids)
        cases = {entry.case.case_id: entry.case for entry in self._plan.runnable}
        for (case_id, purpose, _), outcome in self._outcomes.items():
            if purpose == "measure" and outcome.status == "ok":
                self._note_time(cases[case_id], outcome, outcome.wall_s)

    def _set_failed_aside(self) -> None:
        """Has launches that were not ok, or whose records are damaged, done again."""
        for key, outcome in list(self._outcomes.items()):
            if outcome.status != "ok" or key in self._damaged:
                self._run.set_aside(self._run.launch(*key))
                del self._outcomes[key]

    def _finished(self, entry: PlannedCase, purpose: Purpose, number: int) -> bool:
        return (entry.case.case_id, purpose, number) in self._outcomes

    def _given_up(self, entry: PlannedCase) -> bool:
        """Return whether launching the case again would teach nothing: its proof failed, or it keeps failing."""
        return given_up(entry.case.case_id, self._outcomes)

    def _rounds_todo(self, rounds: int) -> int:
        """Return how many launches of the first rounds are not done and not given up."""
        return sum(
            self._unfinished(entry, rounds) for entry in self._plan.runnable if not self._given_up(entry)
        )

    def _unfinished(self, entry: PlannedCase, rounds: int) -> int:
        """Return how many of a case's launches of the first rounds are not done."""
        return sum(not self._finished(entry, "measure", number) for number in range(rounds))

    def _stop_reason(self, number: int, started: float) -> str:
        """Return why the round `number` is not to be run, or nothing."""
        if number < self._budget.rounds_min:
            return ""
        if all(self._given_up(entry) for entry in self._plan.runnable):
            return "no case can be measured"
        todo = [
            entry
            for entry in self._plan.runnable
            if not self._given_up(entry) and not self._finished(entry, "measure", number)
        ]
        if not todo:
            return ""
        from ddpbench.analysis import cases_without_target, so_far

        found = so_far(self._run)
        wide = cases_without_target(found.widths, self._budget.target_half_width)
        measurable = {entry.case.case_id for entry in self._plan.runnable if not self._given_up(entry)}
        is_open = not measurable.isdisjoint(wide) or found.apart(measurable, self._budget.rounds_min)
        reason = "" if is_open else "target reached"
        expected = sum(self._expected_s(entry) for entry in todo) + SERVER_START_S
        if not reason and time.monotonic() - started + expected > self._budget.total:
            reason = "budget"
        self._listener.round_ended(number - 1, found.widths, reason)
        return reason

    def _servers_todo(self, number: int) -> int:
        """Rounds, and so fork servers, that are promised and not begun."""
        return max(0, self._budget.rounds_min - number - 1)

    def _expected_s(self, entry: PlannedCase) -> float:
        """A launch of the case, seconds: as its own took; before there are any as was guessed, put right by others'."""
        if own := self._own_s.get(entry.case.case_id):
            return sum(own) / len(own)
        return self._plan.launch_s(entry.case) * (self._took_s / self._guessed_s if self._guessed_s else 1.0)

    def _note_time(self, case: Case, outcome: LaunchOutcome, took_s: float) -> None:
        """What a measuring launch took, for what later ones will take."""
        self._took_s += took_s
        self._guessed_s += self._plan.launch_s(case)
        if outcome.status == "ok":
            self._own_s.setdefault(case.case_id, []).append(took_s)

    def _round(self, number: int, servers: _Servers) -> None:
        """Launches what is not done of a round, from servers that then end: the next round gets its own.

        Where sweeps share the cores no number counts, and the servers serve on: starting one takes seconds.
        """
        entries = [self._plan.case(case_id) for at, case_id in self._plan.order if at == number]
        todo = [
            entry
            for entry in entries
            if not self._finished(entry, "measure", number) and not self._given_up(entry)
        ]
        if not todo:
            return
        self._listener.preparing(f"starting round {number + 1}")
        for entry in todo:
            if not self._given_up(entry):
                self._launch(entry, "measure", number, servers, sharing=todo)
        if not own_environment_allows_sharing():
            servers.end()

    def _launch(
        self,
        entry: PlannedCase,
        purpose: Purpose,
        number: int,
        servers: _Servers,
        *,
        sharing: Sequence[PlannedCase] = (),
    ) -> None:
        """`sharing` are those whose launches bear a part each of their server's start; no proof does."""
        case = entry.case
        plan = self._fabrics.placed(self.launch_plan(case, purpose, number))
        what = "proof" if purpose == "proof" else f"round {number + 1}"
        proofs = to_prove(entry for entry in self._plan.runnable if not self._finished(entry, "proof", 0))
        rounds = max(self._budget.rounds_min, number + 1)
        left_s = sum(map(proof_s, proofs)) + self._servers_todo(number) * SERVER_START_S
        left_s += sum(
            self._unfinished(entry, rounds) * self._expected_s(entry)
            for entry in self._plan.runnable
            if not self._given_up(entry)
        )
        total = len(self._outcomes) + len(proofs) + self._rounds_todo(rounds)
        self._listener.launch_started(entry, what, len(self._outcomes), total, left_s)
        server = servers.of(plan.server_env)
        progress = _Progress(entry, self._listener)
        began = time.monotonic()
        outcome = self._runner.run_launch(
            server,
            plan,
            measured_s=self._budget.measured_s,
            goal=self._budget.goal,
            server_share_s=servers.charged_s(server, number) / share
            if (share := _sharing(entry, sharing))
            else 0.0,
            on_pulse=progress.pulse,
        )
        if purpose == "measure":
            self._note_time(case, outcome, time.monotonic() - began)
        self._outcomes[case.case_id, purpose, number] = outcome
        self.result.launches += 1
        self.result.measured_s += outcome.measured_s
        rate = launch_throughput(self._run, case, number) if purpose == "measure" else None
        self._listener.launch_ended(entry, outcome, rate if outcome.status == "ok" else None)

    def launch_plan(self, case: Case, purpose: Purpose, number: int) -> LaunchPlan:
        """Return the launch of a case, placed on this machine."""
        return plan_launch(
            case,
            purpose,
            number,
            directory=self._run.launch(case.case_id, purpose, number),
            hardware=self._prepared.hardware,
            catalog=self._catalog,
            gpu_addresses=self._gpu_addresses,
        )

    def _note_session(self) -> None:
        problem = note_session(
            self._run,
            self._session,
            wall_s=self.result.wall_s,
            measured_s=self.result.measured_s,
            launches=self.result.launches,
            stop_reason=self.result.stop_reason or "failed",
        )
        if problem:
            self._warn(problem)

    def _warn(self, text: str) -> None:
        self.result.warnings.append(text)
        self._listener.warn(text)


def _few(ids: Iterable[str]) -> str:
    """Return the first of them."""
    return ", ".join(sorted(ids)[:3])


def _sharing(entry: PlannedCase, todo: Sequence[PlannedCase]) -> int:
    """Return how many launches of a round share this one's fork server: those of the same environment."""
    return sum(other.case.threads_per_rank == entry.case.threads_per_rank for other in todo)


class _Servers(AbstractContextManager["_Servers"]):
    """Fork servers by environment, started when first asked for, all ended with the context or before."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._stack = ExitStack()
        self._running: dict[str, ServerProcess] = {}
        self._first_round: dict[ServerProcess, int] = {}

    def of(self, env: Mapping[str, str]) -> ServerProcess:
        """Return the one of an environment."""
        key = json.dumps(dict(env), sort_keys=True)
        if key not in self._running or not self._running[key].alive:
            self._running[key] = self._stack.enter_context(ServerProcess(env, self._log))
        return self._running[key]

    def charged_s(self, server: ServerProcess, number: int) -> float:
        """Return what a round bears of a server's start: the first one that it serves bears all, seconds."""
        return server.start_s if self._first_round.setdefault(server, number) == number else 0.0

    def end(self) -> None:
        """Ends those that run; who asks again gets new ones."""
        self._running.clear()
        self._first_round.clear()
        self._stack.close()

    def __exit__(self, *_: object) -> None:
        self.end()


class _Progress:
    """Turns a rank's step counts into throughput so far, for the listener."""

    def __init__(self, entry: PlannedCase, listener: Listener) -> None:
        self._entry, self._listener = entry, listener
        self._first: tuple[float, int] | None = None

    def pulse(self, pulse: Pulse) -> None:
        now = time.monotonic()
        rate: float | None = None
        if pulse.phase == "timed steps":
            if self._first is None:
                self._first = (now, pulse.steps)
            elif pulse.steps > self._first[1] and now > self._first[0]:
                steps, case = pulse.steps - self._first[1], self._entry.case
                rate = case.dilation * steps * case.global_batch / (now - self._first[0])
        self._listener.pulse(self._entry, pulse, rate)


def launch_throughput(run: RunDir, case: Case, number: int) -> float | None:
    """A launch's samples per second by rank 0's own clock, for progress lines; the table's figure is `analysis`'."""
    for rank in read_launch(run.launch(case.case_id, "measure", number)).ranks:
        blocks = [block for block in rank.of(Block) if block.phase == "timed"]
        if rank.rank == 0 and blocks:
            seconds = sum(block.end_ns - block.start_ns for block in blocks) / 1e9 / case.dilation
            return sum(block.steps for block in blocks) * case.global_batch / seconds
    return None
