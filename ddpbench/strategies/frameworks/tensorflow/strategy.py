"""The strategies `tf_mirrored` and `tf_multi_worker`, TensorFlow's data parallelism in one or several processes."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel

from ddpbench.errors import first_reason
from ddpbench.spec import Case
from ddpbench.strategies.base import Job, Replica, Strategy
from ddpbench.strategies.frameworks.installed import missing
from ddpbench.strategies.frameworks.tensorflow import TfMirroredOptions, TfMultiWorkerOptions
from ddpbench.strategies.frameworks.tensorflow.models import TWINS

_OptionsT = TypeVar("_OptionsT", bound=BaseModel)
_NOTE = (
    "TensorFlow trains an equivalent Keras model, with the same initial values, samples and update, proved "
    "before it is timed, but with another framework's kernels. The base case is torch's, so a speed-up also "
    "compares TensorFlow with torch. A timed step is one tf.function, as in TensorFlow's guides. An instrumented "
    "step is cut into four functions (forward, backward, aggregation, update), which can be timed but do not "
    "overlap. TensorFlow does not report times of single transfers, so columns of communication are empty."
)


class _Tf(Strategy[_OptionsT]):
    """Base of both TensorFlow strategies.

    The fork server does not import TensorFlow: with pandas installed, Keras imports pyarrow, which starts a thread, and
    a server with threads must not fork. Ranks of other strategies would also hold TensorFlow in memory.
    """

    algorithm = "collective_reduce"
    schedule = "after_backward"
    framework = "tensorflow"
    engine = "TensorFlow"

    def check(self, case: Case) -> str | None:
        return missing("tensorflow") or self._workload_reason(case) or self._setting_reason(case)

    def step_reason(self, case: Case) -> str:
        return f"{self.name} cannot call a step() that is written for torch: use {_listed()}"

    def _workload_reason(self, case: Case) -> str | None:
        if case.workload.partition(":")[0] in TWINS:
            return None
        return (
            f"TensorFlow cannot train a torch model: {self.name} has Keras twins of {_listed()}, and none of "
            f"{case.workload}"
        )

    def _setting_reason(self, case: Case) -> str | None:
        what = "evaluation" if case.evaluation else "checkpoint"
        return first_reason(
            (
                case.device != "cpu",
                (
                    "GPU times are taken on torch's streams, which do not see TensorFlow's work: set device = "
                    '"cpu"'
                ),
            ),
            (
                case.precision != "full",
                (
                    f'precision = "{case.precision}" is torch\'s autocast, which TensorFlow does not use: '
                    'set precision = "full"'
                ),
            ),
            (
                case.dtype not in ("float32", "float64"),
                f'{self.name} supports float32 and float64, but not dtype = "{case.dtype}"',
            ),
            (
                case.evaluation or case.checkpoint,
                f"{what} times torch's model, and {self.name} trains TensorFlow's: leave out {what}",
            ),
            (
                case.recovery != "off",
                f"snapshots are of torch's model, and {self.name} trains TensorFlow's: leave out recovery",
            ),
            (
                case.fabric,
                (
                    "TensorFlow moves gradients by its own servers, which were not proved over emulated links: "
                    "leave out [fabric]"
                ),
            ),
        )


class TfMirrored(_Tf[TfMirroredOptions]):
    """tf.distribute.MirroredStrategy in one process, which has a replica on each of `world_size` logical CPU devices.

    The process splits the global batch evenly, in order. As in TensorFlow's guide, the model is made under
    `strategy.scope()`, a replica's loss is its sum divided by the global batch size, and Keras' optimizer sums
    gradients over replicas. Metrics, callbacks, shuffling and checkpoints are absent, because `fit` is not used.
    """

    name = "tf_mirrored"
    display = "TF Mirrored"
    colour, marker = "#FF6F00", "^"
    options = TfMirroredOptions
    uses_backend = False
    one_process = True
    variants = ({"cross_device_ops": "reduction_to_one_device"},)
    note = _NOTE

    def build(self, job: Job, options: TfMirroredOptions) -> Replica:
        from ddpbench.strategies.frameworks.tensorflow.devices import mirrored
        from ddpbench.strategies.frameworks.tensorflow.replica import TfReplica

        strategy = mirrored(
            job.world_size, threads=job.case.threads_per_rank, cross_device_ops=options.cross_device_ops
        )
        return TfReplica(job, strategy)


class TfMultiWorker(_Tf[TfMultiWorkerOptions]):
    """tf.distribute.MultiWorkerMirroredStrategy with one process per rank, whose servers sum the gradients.

    Ranks exchange their addresses for `TF_CONFIG`. The loop is that of `tf_mirrored` with one replica per process. A
    step returns the loss over all ranks. A single rank starts no cluster.
    """

    name = "tf_multi_worker"
    display = "TF MultiWorker"
    colour, marker = "#BF360C", "o"
    options = TfMultiWorkerOptions
    variants = ({"bytes_per_pack": 65536}, {"jit_compile": True})
    note = (
        f"{_NOTE} Between ranks gRPC moves gradients, for any backend: that only gives ranks each "
        "other's addresses. TensorFlow's servers listen at all of a host's addresses."
    )

    def _setting_reason(self, case: Case) -> str | None:
        if case.backend not in ("", "gloo"):
            return (
                f"TensorFlow moves gradients by gRPC, and {case.backend} would move nothing: set backend = "
                '"gloo"'
            )
        return super()._setting_reason(case)

    def build(self, job: Job, options: TfMultiWorkerOptions) -> Replica:
        from ddpbench.strategies.frameworks.tensorflow.devices import multi_worker
        from ddpbench.strategies.frameworks.tensorflow.replica import TfReplica

        strategy = multi_worker(
            job.rank,
            job.world_size,
            threads=job.case.threads_per_rank,
            implementation=options.implementation,
            bytes_per_pack=options.bytes_per_pack,
        )
        return TfReplica(job, strategy, jit_compile=options.jit_compile)


def _listed() -> str:
    return " and ".join(TWINS)
