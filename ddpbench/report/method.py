"""The terms of the report and their definitions, from which `docs/glossary.md` is generated."""

from __future__ import annotations

from ddpbench.analysis.steps.communication import OTHER_CLOCK

_TERMS: tuple[tuple[str, str], ...] = (
    ("experiment", "A question and the cases that answer it, in one TOML file."),
    (
        "proof, promise",
        (
            "Before a case is timed, it is checked against single-process training. The promise names what must "
            "agree."
        ),
    ),
    ("case", "One configuration: workload, strategy, ranks, batch, backend, link and so on."),
    (
        "timed block",
        (
            "A barrier, one discarded step and at least ten timed steps (a replay: four). Step times and samples/s "
            "come from timed blocks."
        ),
    ),
    (
        "instrumented step",
        "A step after the timed ones whose spans and transfers are recorded. The parts of a step come from it.",
    ),
    (
        "fork server",
        "A process, one per round, that has imported torch and forks ranks, so that they start in milliseconds.",
    ),
    (
        "A/A test",
        (
            "A comparison of a case with itself. It shows how far apart equal cases appear on a machine (ddpbench "
            "noise)."
        ),
    ),
    (
        "interleaved",
        (
            "Two sides measured alternately on one machine, in blocks of steps or in launches, so disturbances hit "
            "both alike (ddpbench compare --interleave)."
        ),
    ),
    (
        "profile",
        (
            "A file with the times of a model's forward, backward and optimizer, and with each gradient's size and "
            "the time at which it is ready."
        ),
    ),
    (
        "base case",
        (
            "The case that a speed-up divides by: strategy single at one rank, with the same workload, number type, "
            "threads, device and launcher, and the batch that the scaling fixes. Cases of other frameworks are "
            "compared with the base case in plain torch. A run without it has no speed-ups."
        ),
    ),
    (
        "weak, strong scaling",
        (
            "Weak: the local batch is fixed, so work grows with the ranks. Strong: the global batch is fixed and "
            "divided among the ranks."
        ),
    ),
    (
        "master",
        (
            "After backward one rank gathers all gradients, averages them and sends them back. Its link carries n-1 "
            "times the gradients each way; a link of a ring carries 2(n-1)/n times."
        ),
    ),
    (
        "independent",
        (
            "Ranks that train at the same time and exchange nothing. Their throughput, which contention for the "
            "machine reduces, is the upper bound of every strategy."
        ),
    ),
    (
        "samples/s",
        (
            "The sum of the ranks' rates in the median launch. A rank's rate is its samples over the time of its "
            "steps."
        ),
    ),
    ("speed-up", "Samples/s over the base case's: the geometric mean of the ratios within rounds."),
    ("efficiency", "Speed-up divided by the number of ranks."),
    ("step", "One pass of all ranks over a global batch: forward, backward, aggregation and update."),
    (
        "step time",
        (
            "A step's samples over the sum of the ranks' rates in timed blocks, in the median launch. Out-of-phase "
            "ranks do not lengthen it."
        ),
    ),
    (
        "waiting for ranks",
        (
            "Time in which a rank has started a transfer but another has not. As a part of a step it counts only "
            "while the rank computes nothing."
        ),
    ),
    (
        "data wait",
        "Time in which a rank waits for its batch and no transfer is under way; a part of the step.",
    ),
    (
        "p95",
        (
            "The 95th percentile of the timed steps of all launches together: one step in twenty is longer. It is "
            "not an interval."
        ),
    ),
    (
        "not attributed",
        "Time of a step that belongs to none of its other parts; all parts add up to the step.",
    ),
    (
        "loss of efficiency",
        (
            "How much longer a part of the step takes than with ideal scaling of the base case, as a fraction of "
            "the step. Losses and efficiency add up to 1; two further losses stand for the difference between "
            "instrumented and timed steps and for medians that do not add up. Contention is the extra time of "
            "independent ranks."
        ),
    ),
    (
        "busbw",
        (
            "Bus bandwidth as in nccl-tests: a transfer's bytes over its time, times a factor (2(n-1)/n for an "
            f"all-reduce). The time starts when data can flow. {OTHER_CLOCK}; this is busbw by call."
        ),
    ),
    (
        "serial fraction",
        (
            "The fraction of a step that ranks do not divide, fitted by Amdahl's law (strong scaling) or "
            "Gustafson's (weak). Karp-Flatt's is Amdahl's at a single point."
        ),
    ),
    (
        "snapshot",
        (
            "Model, optimizer, random generators and place in the data, saved while training, so that training can "
            "continue after a failure. A checkpoint is timed after training."
        ),
    ),
    (
        "contention, coherency",
        (
            "Coefficients of the Universal Scalability Law for ranks that queue (α) and ranks that must agree in "
            "pairs (β). Throughput is γn / (1 + α(n-1) + βn(n-1))."
        ),
    ),
    ("knee", "The last world size before an added rank brings less than half of one rank's throughput."),
    (
        "oversubscribed",
        (
            "Ranks times threads exceed the cores, and ranks compute for over 2 % of the time, unlike replays that "
            "sleep. Of findings and fits, only claims use them."
        ),
    ),
    (
        "replayed, synthetic computation",
        (
            "Ranks sleep for a profile's times and send placeholder gradients. Replayed: the profile was measured. "
            "Synthetic: it was made from published times."
        ),
    ),
    (
        "network time",
        (
            "How long a step's transfers were in progress on any rank, computing or not. Overlapping transfers "
            "count once."
        ),
    ),
    (
        "data in memory",
        (
            "A case whose steps load nothing: up to 32 batches, or 256 MiB per rank, are copied to the device "
            "before the warm-up."
        ),
    ),
    (
        "input-bound",
        (
            "A step with the loader takes over 2 % longer than with data in memory, by the whole 95 % interval. "
            "Without such a case: over 5 % of a step is waiting for batches."
        ),
    ),
    ("evaluation", "Forward and loss without gradients, on each rank's training batches after training."),
    (
        "checkpoint",
        (
            "Model and optimizer state, written to disk and flushed between two barriers after training. plain: "
            "rank 0 calls torch.save. dcp: all ranks call torch.distributed.checkpoint."
        ),
    ),
    (
        "staleness",
        (
            "The number of updates between the moment a worker gets parameters and the moment its gradient is "
            "applied. It is n - 2 for n equally fast ranks, one of them the server."
        ),
    ),
    (
        "MFU",
        (
            "Model FLOPs utilisation: operations of forward and backward per second over the GPUs' dense peak. "
            "Empty on CPUs and on GPUs of unknown peak."
        ),
    ),
    (
        "time to a loss",
        (
            "After its timed steps, every launch trains a fresh model until the mean loss of the last steps reaches "
            "the target. All launches train on the same data in the same order, so the interval reflects the "
            "scatter of times and not of seeds."
        ),
    ),
    (
        "not steady",
        (
            "Timed steps changed by more than 3 %, and by more than noise explains, or one-time work was not done "
            "before them."
        ),
    ),
    (
        "late replay",
        "A replay's computation ended later than its profile says, by over 1 % of a step in 5 % of its phases.",
    ),
    (
        "noise flag, steal, foreign load",
        (
            "A launch was disturbed by other guests of the host (steal, over 1 % of the cores' time), by other "
            "processes (over 5 %), or by clock changes. It is flagged, never dropped."
        ),
    ),
    (
        "half-width, target width",
        (
            "A half-width is half the length of a 95 % interval; for a ratio, of the interval of its logarithm. A "
            "sweep stops when all cases' intervals have the target width."
        ),
    ),
    (
        "exposed communication, overlapped communication",
        (
            "Exposed: time in which a transfer's data can flow and the rank computes nothing. Overlapped: time that "
            "computation hides. Exposed communication of Holistic Trace Analysis (HTA) includes waiting for ranks."
        ),
    ),
    (
        "emulated, fabric",
        (
            "An emulated network, or fabric, has nodes in network namespaces of one machine and links that the "
            "kernel shapes."
        ),
    ),
    (
        "virtual time, dilated, shrunk",
        (
            "Dilated: computation and links are slowed by one factor, and reported (virtual) times are divided by "
            "it. TCP's timers, bursts, disks and host overhead are not slowed. Shrunk: gradients, bucket caps and "
            "link rates are divided by one factor, and reported sizes are multiplied by it."
        ),
    ),
    (
        "round, launch",
        (
            "A launch is one independent start of a case's ranks. A round launches every case once, in random "
            "order; its launches are paired."
        ),
    ),
    (
        "sweep, run, session",
        (
            "A sweep is one execution of an experiment. Its result is a run: a directory with records, tables and "
            "the report. A session is an uninterrupted part of a sweep."
        ),
    ),
)
TERMS: tuple[tuple[str, str], ...] = tuple(sorted(_TERMS, key=lambda entry: entry[0].casefold()))
"""Terms of the report and their meanings, in alphabetical order."""


def glossary() -> str:
    """Return the text of `docs/glossary.md`, a table of the terms and their meanings."""
    rows = [f"| {term} | {meaning} |" for term, meaning in TERMS]
    head = (
        "# Glossary",
        "",
        "*Generated by `make docs`; do not edit.*",
        "",
        "This page defines the terms of reports, which repeat them under *Terms*.",
        "",
        "| term | meaning |",
        "|---|---|",
    )
    return "\n".join([*head, *rows, ""])
