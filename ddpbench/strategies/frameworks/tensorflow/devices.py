"""Set-up of TensorFlow's devices, threads and cluster, once for all replicas that are built in a process."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ddpbench.collectives.exchange import gather_values
from ddpbench.host_names import resolve

_MOST_ADDRESS = 64
"""Largest size of an address and a port as JSON, in bytes."""

_made: dict[tuple[Any, ...], Any] = {}
"""This process's only TensorFlow strategy. The key has the arguments with which the strategy was made."""


def quiet_tensorflow() -> Any:
    """Import tensorflow with its messages turned off, and return the module."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["KERAS_BACKEND"] = "tensorflow"  # a user's own file may have chosen a different backend
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    return tf


def mirrored(replicas: int, *, threads: int, cross_device_ops: str) -> Any:
    """Return this process's `MirroredStrategy` for `replicas` logical devices. Later calls return the same object."""

    def make() -> Any:
        tf = quiet_tensorflow()
        os.environ.pop("TF_CONFIG", None)
        _set_threads(tf, threads, replicas)
        (cpu, *_) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
        ops = tf.distribute.ReductionToOneDevice() if cross_device_ops == "reduction_to_one_device" else None
        names = [f"CPU:{number}" for number in range(replicas)]
        return tf.distribute.MirroredStrategy(names, cross_device_ops=ops)

    return _once(("mirrored", replicas, threads, cross_device_ops), make)


def multi_worker(rank: int, ranks: int, *, threads: int, implementation: str, bytes_per_pack: int) -> Any:
    """Return this rank's `MultiWorkerMirroredStrategy`. All ranks call this together.

    Later calls return the same object.
    """

    def make() -> Any:
        tf = quiet_tensorflow()
        os.environ.pop("TF_CONFIG", None)
        _set_threads(tf, threads, 1)
        if ranks > 1:
            task = {"type": "worker", "index": rank}
            os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": _addresses(ranks)}, "task": task})
        options = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=bytes_per_pack,
            implementation=tf.distribute.experimental.CommunicationImplementation(implementation.upper()),
        )
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

    return _once(("multi_worker", rank, ranks, threads, implementation, bytes_per_pack), make)


def _once(key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """Return the process's TensorFlow strategy, which the first call makes.

    Raises:
        RuntimeError: a strategy was made for a different key, and TensorFlow's devices cannot be set twice.
    """
    if _made.keys() - {key}:
        (other,) = _made
        raise RuntimeError(
            f"TensorFlow is already set up for {other} in this process and cannot be set up again for {key}"
        )
    if key not in _made:
        _made[key] = make()
    return _made[key]


def _set_threads(tf: Any, threads: int, replicas: int) -> None:
    """Set TensorFlow's threads, and hide GPUs from it.

    Kernels run in inter-op threads, one per replica; a shared intra-op pool of one thread is not used.
    """
    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_inter_op_parallelism_threads(replicas)
    tf.config.threading.set_intra_op_parallelism_threads(threads * replicas if threads > 1 else 1)


def _addresses(ranks: int) -> list[str]:
    """Return the addresses of all ranks' TensorFlow servers; ports are free now, but may not stay so.

    Raises:
        RuntimeError: the default process group was not initialized.
    """
    if not dist.is_initialized():
        raise RuntimeError(
            f"{ranks} ranks of tf_multi_worker exchange addresses through torch.distributed: call "
            "init_process_group first"
        )
    host = _own_address()
    with socket.socket() as probe:
        probe.bind((host, 0))
        own = f"{host}:{probe.getsockname()[1]}"
    return gather_values(own, _address, most=_MOST_ADDRESS)


def _address(sent: Any) -> str:
    """Check a rank's address. Raise errors that `gather_values` handles."""
    host, _, port = sent.rpartition(":") if isinstance(sent, str) else ("", "", "")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError("an address and a port are expected")
    return f"{ipaddress.ip_address(host)}:{int(port)}"


def _own_address() -> str:
    """Return this host's address on its route to rank 0's, or the loopback if all ranks are here."""
    master = os.environ.get("MASTER_ADDR", "")
    if not master or os.environ.get("DDPBENCH_RENDEZVOUS"):
        return "127.0.0.1"
    family, there = resolve(master, int(os.environ.get("MASTER_PORT", "1")), socket.AF_INET)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # connecting sends nothing, but finds the route
        probe.connect(there)
        address: str = probe.getsockname()[0]
        return address
