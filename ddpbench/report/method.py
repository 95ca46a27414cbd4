"""Definitions: each term of the report, in a sentence or two. The glossary in docs/ is made from them."""

from __future__ import annotations

TERMS: tuple[tuple[str, str], ...] = (
    ("experiment", "A question and the matrix of cases that answers it: one TOML file."),
    ("sweep", "Running an experiment: every case, round after round, and a report at the end."),
    ("run", "What a sweep leaves behind: a directory with records, tables and the report."),
    ("session", "One uninterrupted stretch of a sweep. Resuming starts another."),
    ("workload", "What is trained: a model, a dataset, a loss and an optimizer."),
    ("strategy", "How training is divided among devices and gradients are aggregated."),
    (
        "algorithm, schedule",
        "What DDP sends (the backend's all-reduce, a ring, a master ...) and when: during backward or after it.",
    ),
    (
        "proof, promise",
        (
            "Before it is timed, each case is checked against single-process training. The promise is what must agree: "
            "gradients and updates, or for inexact strategies what they guarantee instead."
        ),
    ),
    ("case", "One configuration: workload, strategy, ranks, bucket cap, batch, backend, link and so on."),
    (
        "launch",
        "One independent start of a case's ranks. What differs from start to start is part of the error.",
    ),
    (
        "round",
        (
            "One launch of every case, in a random order. The round is what is replicated; launches are pairs when one "
            "session ran them in one round."
        ),
    ),
    ("rank, world size", "A rank is one training process; the world size is how many there are."),
    (
        "base case",
        (
            "What a speed-up divides by: the same workload, number type, threads per rank and device with "
            "strategy single at one rank; under strong scaling at the same global batch."
        ),
    ),
    (
        "weak, strong scaling",
        (
            "Weak: the local batch is fixed, so work grows with ranks. Strong: the global batch "
            "is fixed and divided."
        ),
    ),
    (
        "independent",
        (
            "Pinned ranks that compute at once and exchange nothing: the upper bound, with the "
            "machine's contention in it."
        ),
    ),
    (
        "samples/s",
        "The sum of the ranks' own rates: samples over the time of whole steps, by each rank's clock.",
    ),
    (
        "speed-up",
        (
            "Samples/s over the base case's, over the rounds that have both; its interval is that of the log "
            "ratios within rounds."
        ),
    ),
    ("efficiency", "Speed-up over the number of ranks."),
    (
        "step",
        (
            "A step's samples over the job's rate: the sum over ranks of samples over the time that they took "
            "the rank in timed blocks. Ranks out of phase do not lengthen it."
        ),
    ),
    (
        "exposed communication",
        "Time in which data of a transfer can flow to or from a rank and the rank computes nothing.",
    ),
    (
        "waiting for ranks",
        "Time in which a rank has begun a transfer and no data can flow yet, because another has not.",
    ),
    ("overlapped communication", "Transfer time hidden behind computation. It is not part of a step's sum."),
    ("not attributed", "What remains of the step after all parts. It closes the sum, and may be negative."),
    (
        "loss of efficiency",
        (
            "What a part of the step takes beyond its share of the base case's ideal step, as a share of the step. A "
            "case's losses and its efficiency add up to 1. Contention: what independent ranks take longer."
        ),
    ),
    (
        "busbw",
        (
            "Bus bandwidth as nccl-tests defines it: a transfer's bytes over its time, times a factor of operation and "
            "ranks (2(n-1)/n for an all-reduce). Here from transfers that run beside computation."
        ),
    ),
    (
        "bucket cap",
        (
            "The size at which DDP closes a gradient bucket (bucket_cap_mb, MiB). default is 25 MiB after "
            "a first bucket of 1 MiB. A bucket may exceed it by a parameter."
        ),
    ),
    (
        "serial fraction",
        (
            "What Amdahl's law (strong scaling) or Gustafson's (weak) makes of a curve: the share of a step that "
            "ranks do not divide. Karp-Flatt's is Amdahl's taken at one point; one that rises with ranks is overhead."
        ),
    ),
    (
        "contention, coherency",
        (
            "The Universal Scalability Law's α (ranks queue for something shared) and β (each pair of ranks has to "
            "agree): throughput is γn / (1 + α(n-1) + βn(n-1))."
        ),
    ),
    (
        "knee",
        "The last world size before an added rank brings less than half of a rank's throughput.",
    ),
    (
        "oversubscribed",
        (
            "More ranks times threads than cores: such cases say little about the strategy and are "
            "kept out of headlines."
        ),
    ),
    (
        "emulated, dilated",
        "On a shaped link, or with computation and links slowed by one factor and reported divided by it.",
    ),
    (
        "replayed, synthetic computation",
        (
            "Ranks sleep for the forward, backward and optimizer times of a profile and hand over gradients of no "
            "meaning at its moments. Replayed: the profile was measured. Synthetic: it was made from published times."
        ),
    ),
    (
        "virtual time, shrunk",
        (
            "Dilated by k, computation and links are k times slower and times are told divided by k. TCP's timers, "
            "bursts, disks and the host's own work do not dilate. Shrunk by m, gradients, bucket caps and links are "
            "divided by m, and sizes told times m."
        ),
    ),
    (
        "network time",
        (
            "How long a step's transfers were under way on any rank: from a transfer's last start to its last end, "
            "without counting twice what overlaps. The formula beside it has the gradients' bytes, 95 % of the "
            "limiting link's rate, and no latency."
        ),
    ),
    (
        "data in memory",
        (
            "A case whose steps load nothing: up to 32 batches of its own loader, or 256 MiB a rank, are taken to "
            "the device before the warm-up and cycled through."
        ),
    ),
    (
        "input-bound",
        (
            "A step through the loader takes longer than one of the same case with its data in memory, the whole "
            "interval beyond 2 %. Where only the loader was run, a case looks input-bound if more than 5 % of an "
            "instrumented step is spent waiting for a batch."
        ),
    ),
    (
        "evaluation",
        (
            "Forward and loss without gradients, in eval mode, on each rank's own training batches, after all "
            "training steps: in blocks between barriers and through the bare model, so that ranks exchange "
            "nothing (DDP's own forward would send buffers out). data_parallel evaluates on one device."
        ),
    ),
    (
        "snapshot",
        (
            "State of model and optimizer written to disk and flushed (fsync), from one barrier to the next, after "
            "all training steps; three of each method a launch, the first included. plain: rank 0 calls "
            "torch.save. dcp: all ranks call torch.distributed.checkpoint, which divides among them what all hold."
        ),
    ),
    (
        "autocast",
        (
            "Forward and loss compute products in bf16 or fp16; parameters and gradients stay as they are. Under fp16 "
            "the loss is scaled, and an update with an infinite gradient is left out on all ranks. The proof holds "
            "gradients to 16 unit roundoffs of that type; float64 without autocast proves the algorithm."
        ),
    ),
    (
        "staleness",
        (
            "With an asynchronous server: how many updates were made between the moment at which a worker got its "
            "parameters and that at which its gradient was applied. Of n - 1 workers that are equally fast it is n - 2."
        ),
    ),
    (
        "MFU",
        (
            "Model FLOPs utilisation: operations of forward and backward, as torch counts them, a second, over the "
            "GPUs' dense peak in the case's precision. Empty on a CPU and on GPUs whose peak is not known here."
        ),
    ),
    (
        "time to a loss",
        (
            "After its measured steps every launch trains a fresh model on the data from their start, until the mean "
            "loss of the last steps is at the target: over as many samples as 32 steps of its base case have, the "
            "same for each number of ranks. A step's loss is that of the whole batch before the update, the mean over "
            "ranks. What ranks take to agree whether to go on, every 10 to 100 steps, is not counted. All launches "
            "train on the same data in the same order: the interval is of the time, not of the path that another seed "
            "would take."
        ),
    ),
    (
        "noise flag",
        (
            "The launch was disturbed: processor time stolen by other guests, other processes, or clock "
            "changes. Flagged, never dropped."
        ),
    ),
)
"""The words of the report, each in a sentence."""


def glossary() -> str:
    """`docs/glossary.md`."""
    rows = [f"| {term} | {meaning} |" for term, meaning in TERMS]
    return "\n".join(["# Glossary", "", "| term | meaning |", "|---|---|", *rows, ""])
