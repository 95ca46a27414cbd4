"""Definitions: each term of the report, in a sentence or two. The glossary in docs/ is made from them."""

from __future__ import annotations

from ddpbench.analysis.steps.communication import OTHER_CLOCK

_TERMS: tuple[tuple[str, str], ...] = (
    ("experiment", "A question and the matrix of cases that answers it, in one TOML file."),
    ("sweep", "One execution of an experiment: every case, round after round, then a report."),
    ("run", "The result of a sweep: a directory with records, tables and the report."),
    ("session", "An uninterrupted part of a sweep. Resuming starts a new one."),
    ("workload", "What is trained: a model, a dataset, a loss and an optimizer."),
    ("strategy", "How training is divided among devices and gradients are aggregated."),
    (
        "algorithm, schedule",
        "What DDP sends (the backend's all-reduce, a ring, a master ...) and when: during backward or after it.",
    ),
    (
        "proof, promise",
        (
            "Before a case is timed, it is checked against single-process training. The promise names what must "
            "agree: gradients and updates or, for an inexact strategy, what it guarantees instead."
        ),
    ),
    ("case", "One configuration: workload, strategy, ranks, bucket cap, batch, backend, link and so on."),
    ("launch", "One independent start of a case's ranks. Variation between launches is part of the error."),
    (
        "round",
        (
            "One launch of every case, in random order. Rounds are the replicates. Launches of one round and one "
            "session are paired."
        ),
    ),
    (
        "timed block",
        (
            "A barrier, one discarded step and at least ten timed steps (a replay: four). Nothing but step times is "
            "recorded in it. Step times and samples/s come from timed blocks."
        ),
    ),
    (
        "instrumented step",
        (
            "A step after the timed ones in which spans and transfers are recorded. The parts of a step come from "
            "instrumented steps, step times do not."
        ),
    ),
    (
        "fork server",
        "A process that has imported torch and forks ranks, so that they start in milliseconds; one per round.",
    ),
    (
        "slot",
        (
            "A process that torchrun, srun or another launcher started. It trains nothing itself and gives each "
            "launch a fresh rank."
        ),
    ),
    (
        "half-width",
        "Half the length of a 95 % interval; for a ratio, of that of its logarithm.",
    ),
    (
        "A/A test",
        (
            "A comparison of a case with itself, as if it were two. It shows how far apart equal cases appear on a "
            "machine (ddpbench noise)."
        ),
    ),
    (
        "profile",
        (
            "A file with the times of a model's forward, backward and optimizer, and with each gradient's size and "
            "moment. A replay follows it."
        ),
    ),
    (
        "fabric",
        "An emulated network: nodes in network namespaces of one machine, and the rates of the links between them.",
    ),
    ("rank, world size", "A rank is one training process; the world size is the number of ranks."),
    (
        "base case",
        (
            "The case that a speed-up divides by: strategy single at one rank, with the same workload, number type, "
            "threads per rank, device and launcher, and the same local batch (weak scaling) or global batch (strong "
            "scaling). It is torch's for every framework. A run without it has no speed-ups."
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
        "DDP, ring",
        (
            "torch's DistributedDataParallel: gradients are averaged bucket by bucket, by an all-reduce (with gloo a "
            "ring; NCCL and MPI choose), as soon as backward has filled a bucket. With one bucket nothing overlaps."
        ),
    ),
    (
        "master",
        (
            "Parameter-server-style aggregation: after backward one rank gathers all ranks' gradients, averages them "
            "and sends them back. Its link carries n-1 times the gradients each way, a ring's 2(n-1)/n times."
        ),
    ),
    (
        "independent",
        (
            "Pinned ranks that compute at the same time and exchange nothing. They are the upper bound, which "
            "includes contention for the machine."
        ),
    ),
    (
        "samples/s",
        (
            "The sum of the ranks' rates. A rank's rate is its samples over the time of its whole steps, by its own "
            "clock. A case's is that of its median launch."
        ),
    ),
    (
        "speed-up",
        (
            "Samples/s over the base case's, paired: the geometric mean of the ratios within the rounds that have "
            "both, with the interval of their logarithms. The quotient of two cells of a table differs slightly."
        ),
    ),
    ("efficiency", "Speed-up over the number of ranks."),
    ("step", "One pass of all ranks over a global batch: forward, backward, aggregation and update."),
    (
        "step time",
        (
            "The samples of one step over the job's rate. The job's rate is the sum of the ranks' rates in timed "
            "blocks. Out-of-phase ranks do not lengthen it. A case's is that of its median launch."
        ),
    ),
    (
        "exposed communication",
        (
            "Time in which a transfer's data can flow to or from a rank and the rank computes nothing. Holistic Trace "
            "Analysis (HTA) counts waiting inside, as NCCL's kernels run while they wait: exposed there is exposed "
            "communication plus waiting for ranks here, as the parts of a step have them."
        ),
    ),
    (
        "waiting for ranks",
        (
            "Time in which a rank has started a transfer but no data can flow yet, because another rank has not. As a "
            "part of a step only while the rank computes nothing; wait_time_s in cases.csv counts all of it."
        ),
    ),
    ("overlapped communication", "Transfer time hidden behind computation. It is not part of a step's sum."),
    (
        "not attributed",
        (
            "Time of a step in which none of its other parts is under way. With it the parts add up to the step, in "
            "each launch."
        ),
    ),
    (
        "loss of efficiency",
        (
            "The time that a part of the step takes beyond its share of the base case's ideal step, as a fraction of "
            "the step. A case's losses and its efficiency add up to 1: parts are those of instrumented steps, the "
            "efficiency that of timed ones, and what the two do not agree on is a separate loss. Each is the median "
            "over rounds; what is left because medians do not add up is the last. Contention is the extra time of "
            "independent ranks."
        ),
    ),
    (
        "busbw",
        (
            "Bus bandwidth with nccl-tests' factor: a transfer's bytes over its time, times a factor for operation "
            "and ranks (2(n-1)/n for an all-reduce). Here a transfer's time is from when data can flow to the last "
            f"rank's result, and it may overlap computation. {OTHER_CLOCK}: busbw by call, next to it."
        ),
    ),
    (
        "bucket cap",
        (
            "The size at which DDP closes a gradient bucket (bucket_cap_mb, MiB). default is 25 MiB after a first "
            "bucket of 1 MiB. A bucket may exceed the cap by one parameter."
        ),
    ),
    (
        "serial fraction",
        (
            "The fraction of a step that ranks do not divide, fitted by Amdahl's law (strong scaling) or Gustafson's "
            "(weak). Karp-Flatt's is Amdahl's at a single point; if it rises with the ranks, what grows is overhead, "
            "not serial work."
        ),
    ),
    (
        "contention, coherency",
        (
            "The Universal Scalability Law's α (ranks queue for a shared resource) and β (each pair of ranks must "
            "agree): throughput is γn / (1 + α(n-1) + βn(n-1))."
        ),
    ),
    ("knee", "The last world size before an added rank brings less than half of one rank's throughput."),
    (
        "oversubscribed",
        (
            "Ranks times threads per rank exceed the cores, and their processor time together is over 2 % of the time."
            " Such cases say little about the strategy and are kept out of findings and fits; a claim's intervals allow"
            " for the waiting."
        ),
    ),
    (
        "emulated, dilated",
        (
            "Emulated: on links that the kernel shapes. Dilated: computation and links are slowed by one factor, and "
            "reported times are divided by it."
        ),
    ),
    (
        "replayed, synthetic computation",
        (
            "Ranks sleep for a profile's forward, backward and optimizer times and hand over placeholder gradients at"
            " its moments. Replayed: the profile was measured. Synthetic: it was made from published times."
        ),
    ),
    (
        "virtual time, shrunk",
        (
            "Dilated by k, computation and links are k times slower, and reported times are divided by k. TCP's "
            "timers, bursts, disks and host overhead are not dilated. Shrunk by m, gradients, bucket caps and link "
            "rates are divided by m, and reported sizes are multiplied by m."
        ),
    ),
    (
        "network time",
        (
            "How long a step's transfers were in progress on any rank, whether ranks compute meanwhile or not. A "
            "transfer is in progress from its first data until its last rank has finished; overlapping transfers count "
            "once. It is the whole job's and adds to no part of a step: those are means over ranks. The formula next "
            "to it uses the gradient bytes, 95 % of the limiting link's rate, and no latency."
        ),
    ),
    (
        "data in memory",
        (
            "A case whose steps load nothing: up to 32 batches of its loader, or 256 MiB per rank, are copied to the "
            "device before the warm-up and used in turn."
        ),
    ),
    (
        "input-bound",
        (
            "The whole interval shows a step through the loader to be more than 2 % longer than with data in memory. "
            "If only the loader was run: more than 5 % of an instrumented step is waiting for batches."
        ),
    ),
    (
        "evaluation",
        (
            "Forward and loss in eval mode without gradients, on each rank's training batches, after all training "
            "steps. The bare model runs, so ranks exchange nothing. data_parallel evaluates on one device."
        ),
    ),
    (
        "checkpoint",
        (
            "Model and optimizer state, written to disk and flushed (fsync) between two barriers, after all training "
            "steps. Each launch takes three by each method, and the mean includes the first. plain: rank 0 calls "
            "torch.save. dcp: all ranks call torch.distributed.checkpoint, which divides replicated state among them."
        ),
    ),
    (
        "autocast",
        (
            "Forward and loss compute products in bf16 or fp16; parameters and gradients keep their type. Under fp16 "
            "the loss is scaled, and all ranks skip an update with an infinite gradient. The proof allows gradients "
            "an error of 16 unit roundoffs of that type; float64 without autocast proves the algorithm."
        ),
    ),
    (
        "staleness",
        (
            "With an asynchronous server: the number of updates between the moment a worker gets its parameters and "
            "the moment its gradient is applied. With n ranks, one of them the server, and equally fast workers it "
            "is n - 2."
        ),
    ),
    (
        "MFU",
        (
            "Model FLOPs utilisation: operations of forward and backward per second, as torch counts them, over the "
            "GPUs' dense peak in the case's precision. Empty on a CPU and on GPUs whose peak is unknown."
        ),
    ),
    (
        "time to a loss",
        (
            "After its measured steps, every launch trains a fresh model, with the data from the start, until the "
            "mean loss of the last steps reaches the target. The mean covers as many samples as 32 steps of the base "
            "case, at every number of ranks. A step's loss is that of the whole batch before the update, averaged "
            "over ranks. Every 10 to 100 steps the ranks agree whether to continue; that time is not counted. All "
            "launches train on the same data in the same order, so the interval covers the time, not the variation "
            "between seeds."
        ),
    ),
    (
        "noise flag",
        (
            "The launch was disturbed by CPU time stolen by other guests, by other processes, or by clock changes. It"
            " is flagged, never dropped."
        ),
    ),
    (
        "steal, foreign load",
        (
            "Shares of the cores' time during a launch that other guests of the host took, and processes that are not "
            "the sweep's. Above 1 % and 5 % the launch is flagged as disturbed."
        ),
    ),
    (
        "not steady",
        (
            "Timed steps still changed by more than 3 % from beginning to end, and by more than noise explains: those "
            "of a launch, of a case's launches together, or of the run's. Or one-time work was not done before them."
        ),
    ),
    (
        "late replay",
        (
            "A replay's computation ended later than its profile says, by more than 1 % of a step in one phase of "
            "twenty. Findings tell how much too long its steps read by that."
        ),
    ),
    (
        "target width",
        (
            "The half-width of the 95 % interval of a case's ratio to its base case (without one, of its step time) at "
            "which a sweep makes no more rounds. Not reached: the rounds or the time were spent before."
        ),
    ),
)
TERMS: tuple[tuple[str, str], ...] = tuple(sorted(_TERMS, key=lambda entry: entry[0].casefold()))
"""Terms of the report and their meanings, in alphabetical order."""


def glossary() -> str:
    """Return the text of `docs/glossary.md`."""
    rows = [f"| {term} | {meaning} |" for term, meaning in TERMS]
    note = "*Generated by `make docs` from `ddpbench/report/method.py`; do not edit.*"
    return "\n".join(["# Glossary", "", note, "", "| term | meaning |", "|---|---|", *rows, ""])
