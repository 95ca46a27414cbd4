"""Validate the environment variables that an experiment sets for its ranks, and find misspelt ones.

`[env]` sets variables for all cases, and an axis `env.NAME` varies one, before a rank imports anything. An empty text
unsets a variable.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping

UNSET = ""
NONE = "{}"
"""The value of `Case.env_json` for a case without variables."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_WHOSE = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
        "ddpbench sets it: use base.threads_per_rank",
    ),
    **dict.fromkeys(
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"),
        "ddpbench sets it: use base.world_size and base.nodes",
    ),
    **dict.fromkeys(
        ("MASTER_ADDR", "MASTER_PORT"), "ddpbench or the launcher sets it: give it to the launcher"
    ),
    **dict.fromkeys(
        ("PYTHONPATH", "PYTHONHOME", "PATH", "HOME", "TMPDIR"),
        "it decides where programs and files are found: set it in the shell that starts ddpbench",
    ),
    "CUDA_VISIBLE_DEVICES": "it decides which GPUs there are: set it in the shell that starts ddpbench",
}
_WHOSE_PREFIXES = {
    "DDPBENCH_": "it is ddpbench's own: set it in the shell that starts ddpbench",
    "TORCHELASTIC_": "torchrun sets it: leave it out",
    "MPI4PY_": "it chooses the MPI library, which is part of a run's identity: set it in the shell, for all launches",
    "PMI_": "it sets MPI's rank numbers, which ddpbench sets itself: leave it out",
}
OF_FABRICS = ("GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES", "UCX_TLS")
"""Variables that decide which network interfaces are used. A fabric sets these variables itself."""
_TRANSPORT = (
    *("NCCL_", "TORCH_NCCL_", "RCCL_", "GLOO_", "TORCH_GLOO_", "UCC_", "UCX_", "FI_"),
    *("OMPI_", "PRTE_", "PMIX_", "MPICH_", "MPIR_", "I_MPI_", "MV2_"),
)
"""Prefixes of variables that affect only the libraries which move data between ranks."""
_READ = ("NCCL_", "GLOO_", "TORCH_")
"""Prefixes of variables whose names are all known, so that a misspelt name can be recognized."""
_CLOSE = 0.87
"""Least similarity (of difflib) at which an unknown name is considered a misspelling of a known name."""


def refused(name: str) -> str:
    """Return why an experiment cannot set this variable; empty if it can."""
    if not _NAME.fullmatch(name):
        return "is not a valid name of a variable: use at most 100 letters, digits and _, and no digit first"
    why = _WHOSE.get(name) or next(
        (reason for prefix, reason in _WHOSE_PREFIXES.items() if name.startswith(prefix)), ""
    )
    return f"cannot be set here; {why}" if why else ""


def moves_data(name: str) -> bool:
    """Return whether a variable is read only by libraries that move data between ranks."""
    return name.startswith(_TRANSPORT)


def meant(name: str) -> str:
    """Return the known variable that an unknown name probably stands for; empty if there is none."""
    if not name.startswith(_READ) or name in KNOWN:
        return ""
    return next(iter(difflib.get_close_matches(name, KNOWN, n=1, cutoff=_CLOSE)), "")


def to_json(variables: Mapping[str, str]) -> str:
    """Return variables as JSON for `Case.env_json`, sorted by name."""
    return json.dumps(dict(variables), sort_keys=True)


def words(name: str, value: str) -> str:
    """Return a text for a variable: `NCCL_ALGO=Ring`, or `NCCL_ALGO unset`."""
    return f"{name}={value}" if value != UNSET else f"{name} unset"


def without_transport(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables, leaving out variables that only affect how data are moved between ranks."""
    return {name: value for name, value in variables.items() if not moves_data(name)}


def own_json(text: str) -> str:
    """Do the same as `without_transport`, for variables given as JSON (`Case.env_json`)."""
    return text if text == NONE else to_json(without_transport(json.loads(text)))


def _names(prefix: str, text: str) -> list[str]:
    return [prefix + word for word in text.split()]


KNOWN = frozenset(
    [
        # https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html, and variables that older
        # releases read
        *_names(
            "NCCL_",
            """
            ALGO ALLOC_P2P_NET_LL_BUFFERS ASYNC_ERROR_HANDLING BLOCKING_WAIT BUFFSIZE CGA_CLUSTER_SIZE CHECKS_DISABLE
            CHECK_POINTERS COLLNET_ENABLE COLLNET_NODE_THRESHOLD COMM_BLOCKING COMM_ID CONF_FILE CROSS_NIC CTA_POLICY
            CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG DEBUG_FILE DEBUG_SUBSYS DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS
            DMABUF_ENABLE GRAPH_DUMP_FILE GRAPH_FILE GRAPH_MIXING_SUPPORT GRAPH_REGISTER HOSTID IB_ADAPTIVE_ROUTING
            IB_ADDR_FAMILY IB_ADDR_RANGE IB_AR_THRESHOLD IB_CUDA_SUPPORT IB_DISABLE IB_ECE_ENABLE IB_FIFO_TC
            IB_GID_INDEX IB_HCA IB_MERGE_NICS IB_MERGE_VFS IB_PCI_RELAXED_ORDERING IB_QPS_PER_CONNECTION IB_RETRY_CNT
            IB_RETURN_ASYNC_EVENTS IB_ROCE_VERSION_NUM IB_SL IB_SPLIT_DATA_ON_QPS IB_TC IB_TIMEOUT IB_USE_INLINE
            IGNORE_CPU_AFFINITY IGNORE_DISABLED_P2P LAUNCH_MODE LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL
            LEGACY_CUDA_REGISTER LL_THRESHOLD LL_BUFFSIZE LL128_BUFFSIZE LL128_NTHREADS LOCAL_REGISTER MAX_CTAS
            MAX_NCHANNELS MAX_NRINGS MAX_P2P_NCHANNELS MIN_CTAS MIN_NCHANNELS MIN_NRINGS MIN_P2P_NCHANNELS
            MNNVL_CLIQUE_ID MNNVL_ENABLE MNNVL_UUID NCHANNELS_PER_NET_PEER NET NETDEVS_POLICY NET_DISABLE_INTRA
            NET_FORCE_FLUSH NET_GDR_C2C NET_GDR_LEVEL NET_GDR_READ NET_OVERHEAD NET_PLUGIN NET_SHARED_BUFFERS
            NET_SHARED_COMMS NSOCKS_PERTHREAD NTHREADS NVB_DISABLE NVLSTREE_MAX_CHUNKSIZE NVLS_ENABLE NVLS_NCHANNELS
            OOB_NET_ENABLE OOB_NET_IFNAME P2P_DIRECT_DISABLE P2P_DISABLE P2P_LEVEL P2P_LL_THRESHOLD P2P_NET_CHUNKSIZE
            P2P_PXN_LEVEL P2P_READ_ENABLE P2P_USE_CUDA_MEMCPY PROFILER_PLUGIN PROTO PXN_C2C PXN_DISABLE RAS_ADDR
            RAS_ENABLE RAS_TIMEOUT_FACTOR RINGS RUNTIME_CONNECT SET_STACK_SIZE SET_THREAD_NAME SHM_DISABLE SHM_LOCALITY
            SHM_USE_CUDA_MEMCPY SINGLE_RING_THRESHOLD SOCKET_FAMILY SOCKET_IFNAME SOCKET_NTHREADS SOCKET_RETRY_CNT
            SOCKET_RETRY_SLEEP_MSEC STORE_PATH THREAD_THRESHOLDS TOPO_DUMP_FILE TOPO_FILE TREE_THRESHOLD
            TUNER_CONFIG_FILE TUNER_PLUGIN UID_STAGGER_RATE UID_STAGGER_THRESHOLD VERSION WIN_ENABLE WORK_ARGS_BYTES
            WORK_FIFO_BYTES WORK_FIFO_DEPTH
            """,
        ),
        # variables that torch 2.13 reads, by its libraries and sources
        *_names(
            "GLOO_",
            """
            DEVICE_TRANSPORT DEVICE_TRANSPORT_TCP_TLS_CA_FILE DEVICE_TRANSPORT_TCP_TLS_CA_PATH
            DEVICE_TRANSPORT_TCP_TLS_CERT DEVICE_TRANSPORT_TCP_TLS_PKEY DISABLE_CONNECTION_RETRIES
            ENABLE_RANK_AS_SEQUENCE_NUMBER ENABLE_STORE_V2_API LOG_LEVEL SOCKET_IFNAME
            """,
        ),
        *_names(
            "TORCH_",
            """
            ADDR2LINE_BINARY ALLOW_TF32_CUBLAS_OVERRIDE AUTOGRAD_SHUTDOWN_WAIT_LIMIT
            BLAS_PREFER_CUBLASLT BLAS_PREFER_HIPBLASLT CACHING_PRECOMPILE COMPILER_COLLECTIVES
            COMPILE_BACKEND COMPILE_CPROFILE COMPILE_DEBUG COMPILE_DEBUG_SAVE_REAL COMPILE_DISABLE
            COMPILE_DYNAMO_PROFILER COMPILE_GRAPH_FORMAT COMPILE_OVERRIDE_BACKENDS COMPILE_REPLAY_RECORD
            COMPILE_STROBELIGHT COMPILE_USE_LAZY_GRAPH_MODULE CPP_LOG_LEVEL CUDA_ARCH_LIST
            CUDNN_USE_HEURISTIC_MODE_B CUDNN_V8_API_DEBUG CUDNN_V8_API_DISABLED DEVICE_BACKEND_AUTOLOAD
            DISABLE_ADDR2LINE DISABLE_FUNCTIONALIZATION_META_REFERENCE DISABLE_NATIVE_JIT
            DISABLE_SHARE_RDZV_TCP_STORE DISTRIBUTED_COMPILE_ON_ONE_RANK DISTRIBUTED_DEBUG
            DISTRIBUTED_USE_TORCHCOMMS DIST_INIT_BARRIER DONT_CHECK_COMPILER_ABI
            DYNAMO_AUTOMATIC_DYNAMIC_SHAPES DYNAMO_DO_NOT_EMIT_RUNTIME_ASSERTS ELASTIC_SHUTDOWN_TIMEOUT
            ELASTIC_WORKER_IDENTICAL EXTENSIONS_DIR FAKE_TENSOR_DEBUG FAKE_TENSOR_DISPATCH_CACHE
            FORCE_NO_WEIGHTS_ONLY_LOAD FORCE_WEIGHTS_ONLY_LOAD FR_BUFFER_SIZE FR_CPP_STACK
            FR_DUMP_DYNAMIC_FILE_NAME FR_DUMP_TEMP_FILE GLOO_IBV_INDEX GLOO_IBV_NAME GLOO_IBV_PORT
            GLOO_LAZY_INIT HOME HUB JIT_DISABLE_NEW_EXECUTOR LINALG_PREFER_CUSOLVER
            LINALG_PREFER_HIPSOLVER LINEAR_FLATTEN_3D LOGS LOGS_FORMAT LOGS_OUT MKLDNN_MATMUL_MIN_DIM
            MKLDNN_MATMUL_MIN_SIZE MODEL_ZOO NCCL_ASYNC_ERROR_HANDLING NCCL_AVOID_RECORD_STREAMS
            NCCL_BCAST_UNIQUEID NCCL_BLOCKING_WAIT NCCL_CLEAR_TENSORS NCCL_COORD_CHECK_MILSEC
            NCCL_CUDA_EVENT_CACHE NCCL_DEBUG_INFO_PIPE_FILE NCCL_DEBUG_INFO_TEMP_FILE NCCL_DESYNC_DEBUG
            NCCL_DUMP_ON_TIMEOUT NCCL_ENABLE_MONITORING NCCL_ENABLE_TIMING NCCL_EXTRA_DUMP_ON_EXEC
            NCCL_HEARTBEAT_TIMEOUT_SEC NCCL_HIGH_PRIORITY NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN
            NCCL_NAN_CHECK NCCL_NONBLOCKING_TIMEOUT NCCL_PROPAGATE_ERROR NCCL_RANKS_PER_ROOT
            NCCL_RETHROW_CUDA_ERRORS NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING
            NCCL_TRACE_BUFFER_SIZE NCCL_TRACE_CPP_STACK NCCL_USE_COMM_NONBLOCKING
            NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK NCCL_WAIT_TIMEOUT_DUMP_MILSEC
            PROFILER_ENABLE_COLLECTIVE_PROFILING ROCM_AOTRITON_ENABLE_EXPERIMENTAL ROCM_FA_PREFER_CK
            SERIALIZATION_DEBUG SHOW_CPP_STACKTRACES SHOW_DISPATCH_TRACE
            SPARSE_BSR_SCATTER_MM_LRU_CACHE_SIZE STRICT_PRECOMPILE SYMBOLIZE_MODE SYMMMEM_IMPLICIT_POOL
            TRACE USE_RTLD_GLOBAL WARM_POOL XPU_ARCH_LIST
            """,
        ),
    ]
)
"""Names that libraries read, under the prefixes in `_READ`."""
