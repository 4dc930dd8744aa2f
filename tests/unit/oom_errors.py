"""Stand-ins for errors of frameworks that these tests do not import, with the same names, base classes and texts."""

import builtins

GIB = 2**30

TORCH_OOM = "torch.OutOfMemoryError"
TF_EXHAUSTED = "tensorflow.python.framework.errors_impl.ResourceExhaustedError"
TF_INTERNAL = "tensorflow.python.framework.errors_impl.InternalError"
JAX = "jax.errors.JaxRuntimeError"
CUPY_OOM = "cupy.cuda.memory.OutOfMemoryError"
RAY_OOM = "ray.exceptions.OutOfMemoryError"


def torch_text(asked="2.00 GiB", free="61.25 GiB", in_use="18.17 GiB", allowed="", held="17.50 GiB"):
    """Return the OOM message of PyTorch 2.4 to 2.13. It contains ``allowed`` only if a memory fraction is set."""
    return (
        f"CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 79.25 GiB of which {free} is "
        f"free. Including non-PyTorch memory, this process has {in_use} memory in use. "
        f"{allowed and f'{allowed} allowed; '}Of the allocated memory {held} is allocated by PyTorch, and 100.00 MiB "
        "is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )


OLD_TORCH = (
    "CUDA out of memory. Tried to allocate 4.00 GiB (GPU 0; 10.76 GiB total capacity; 2.82 GiB already allocated; "
    "6.18 GiB free; 5.00 GiB allowed; 4.33 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory"
)
ASYNC_TORCH = (
    "Allocation on device 0 would exceed allowed memory. (out of memory)\n"
    "Currently allocated     : 4.86 GiB\nRequested               : 10.00 GiB\nDevice limit            : 24.00 GiB\n"
    "Free (according to CUDA): 0 bytes\n"
    "PyTorch limit (set by user-supplied memory fraction)\n                        : "
)
MPS = (
    "MPS backend out of memory (MPS allocated: 14.00 GB, other allocations: 3.00 GB, max allowed: 18.00 GB). "
    "Tried to allocate 2.00 GB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit"
)
XPU = (
    "XPU out of memory. Tried to allocate 59.61 GiB. GPU 0 has a total capacity of 28.55 GiB of which 12.01 GiB is "
    "free. 7.00 GiB allowed; Of the allocated memory 1.00 GiB is allocated by PyTorch, and 0 bytes is reserved by "
    "PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory."
)
NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled cuda error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.20.5\nncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\nCuda failure 2 'out of memory'"
)
TF_ON_GPU = (
    "{{function_node __wrapped__Mul_device_/job:localhost/replica:0/task:0/device:GPU:0}} OOM when allocating tensor "
    "with shape[1024,1024,256] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc "
    "[Op:Mul]"
)
RAY_250 = (
    "Task was killed due to the node running low on memory. \nMemory on the node (IP: 10.0.0.1, ID: fc2b) where the "
    "task (task ID: 4161, name=train, pid=548, memory used=12.50GB) was running was 31.91GB / 33.28GB (0.9582), which "
    "exceeds the memory usage threshold of 0.95. Ray killed this worker (ID: 0f76) because it was the most recent"
)
RAY_260 = (
    "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.0.0.1, ID: fc2b) was "
    "31.91GB used / 33.28GB limit (0.958)\nOOM kill reason: Memory usage exceeded threshold\nConsidered workers: [\n"
    "Selected to kill: (Actor(af6d): task name=A.__init__, pid=26387, actual memory used=0.50GB, worker ID=54df)\n]"
)
ACTOR_KILLED = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: ImplicitFunc\n\tactor_id: 8d14\n"
    "The actor is dead because its worker process has died. Worker exit type: NODE_OUT_OF_MEMORY Worker exit detail: "
    f"{RAY_250}"
)

SEVERAL_KILLED = (
    "3 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.0.0.1, ID: fc2b) was "
    "4.28GB used / 23.54GB limit (0.182006)\nOOM kill reason: Memory usage 4592082944B exceeded threshold\n"
    "Object store memory usage: [- objects spillable: 0\n(global lru) bytes evicted: 0]\n"
    "Ray killed 3 worker(s) based on the killing policy\nConsidered workers: [\n"
    "Selected to kill: (Actor(af6d): job ID=01, task name=A.__init__, required resources={memory: 3.14573e+08}, "
    "pid=11613, actual memory used=0.25GB, worker ID=57df)\n"
    "Selected to kill: (Actor(be11): job ID=01, task name=A.__init__, required resources={CPU: 1}, pid=11554, "
    "actual memory used=2.50GB, worker ID=90d4)\n"
    "Selected to kill: (Task: job ID=01, task name=A.__init__, required resources={CPU: 1}, pid=11553, "
    "actual memory used=0.50GB, worker ID=f811)\n"
    "(Actor(c0de): job ID=01, task name=A.__init__, required resources={CPU: 1}, pid=11552, actual memory used=3.00GB, "
    "worker ID=f812)\n]\nTotal non-selected idle workers: 1\n"
    "Top 10 memory users: PID\tMEM(GB)\tCOMMAND\n11123\t1.50\tpython -c import time; x=b'x'*(3500*2**20)\n"
    "11552\t3.00\tray::A.f\n11554\t2.50\tray::A.f\n11553\t0.50\tray::A.__init__\n11613\t0.25\tray::A.f\n"
    "11600\t0.06\tray::IDLE\n10512\t0.25\tpython train.py\n"
    "Refer to the documentation on how to address the out of memory issue: https://docs.ray.io"
)

ACCELERATOR = {
    "torch, within its limit on a device with room": (
        (TORCH_OOM, torch_text(allowed="19.00 GiB")),
        ("torch", 2 * GIB, 19 * GIB, "own_limit"),
    ),
    "torch, within its limit on a full device": (
        (TORCH_OOM, torch_text(free="1.25 GiB", allowed="30.00 GiB")),
        ("torch", 2 * GIB, 30 * GIB, "neighbour"),
    ),
    "torch, above its limit on a full device": (
        (TORCH_OOM, torch_text(free="1.25 GiB", allowed="18.50 GiB")),
        ("torch", 2 * GIB, 37 * GIB // 2, "own_limit"),
    ),
    "torch without a limit, with other processes": (
        (TORCH_OOM, torch_text(free="1.25 GiB")),
        ("torch", 2 * GIB, None, "neighbour"),
    ),
    "torch, above its limit because of reserved memory": (
        (TORCH_OOM, torch_text(free="1.25 GiB", allowed="19.58 GiB")),
        ("torch", 2 * GIB, int(19.58 * GIB), "own_limit"),
    ),
    "torch up to 2.0 on a full device, above its limit": (
        ("torch.cuda.OutOfMemoryError", OLD_TORCH.replace("6.18 GiB free; 5.00", "1.00 GiB free; 8.00")),
        ("torch", 4 * GIB, 8 * GIB, "own_limit"),
    ),
    "torch without a limit, alone": (
        (TORCH_OOM, torch_text(free="1.00 GiB", in_use="78.00 GiB", held="77.00 GiB")),
        ("torch", 2 * GIB, None, None),
    ),
    "torch without a limit, with fragmentation": ((TORCH_OOM, torch_text()), ("torch", 2 * GIB, None, None)),
    "torch up to 2.0": (("torch.cuda.OutOfMemoryError", OLD_TORCH), ("torch", 4 * GIB, 5 * GIB, "own_limit")),
    "torch without details": ((TORCH_OOM, ""), ("torch", None, None, None)),
    "torch, an impossible amount": (
        (TORCH_OOM, "CUDA out of memory. Tried to allocate more than 1EB memory."),
        ("torch", None, None, None),
    ),
    "torch, cudaMallocAsync with a limit": (
        (TORCH_OOM, f"{ASYNC_TORCH}12.00 GiB"),
        ("torch", 10 * GIB, 12 * GIB, "own_limit"),
    ),
    "torch, cudaMallocAsync without a limit": (
        (TORCH_OOM, f"{ASYNC_TORCH}17179869184.00 GiB"),
        ("torch", 10 * GIB, None, None),
    ),
    "torch on Apple": (("RuntimeError", MPS), ("torch", 2 * GIB, 18 * GIB, "own_limit")),
    "torch on Intel": ((TORCH_OOM, XPU), ("torch", int(59.61 * GIB), 7 * GIB, "own_limit")),
    "torch on AMD": (("RuntimeError", torch_text().replace("CUDA", "HIP", 1)), ("torch", 2 * GIB, None, None)),
    "torch on Ascend, a workspace": (
        ("RuntimeError", "NPU out of memory. NPUWorkspaceAllocator tried to allocate 1.00 GiB(NPU 0; 61.27 GiB total"),
        ("torch", GIB, None, None),
    ),
    "torch, the driver": (
        ("torch.AcceleratorError", "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in the docs"),
        ("torch", None, None, None),
    ),
    "cuBLAS": (
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        ("torch", None, None, None),
    ),
    "cuDNN 9": (
        ("RuntimeError", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        ("torch", None, None, None),
    ),
    "NCCL": (("torch.distributed.DistBackendError", NCCL), ("torch", None, None, None)),
    "TensorFlow": ((TF_EXHAUSTED, TF_ON_GPU), ("tensorflow", GIB, None, None)),
    "TensorFlow, compiled": (
        (TF_EXHAUSTED, "Out of memory while trying to allocate 1073741824 bytes. [Op:__inference_train_step_13]"),
        ("tensorflow", GIB, None, None),
    ),
    "TensorFlow, asynchronous": (
        (
            TF_EXHAUSTED,
            "{{function_node __wrapped__Mul_device_/job:w/device:GPU:0}} failed to allocate memory [Op:Mul]",
        ),
        ("tensorflow", None, None, None),
    ),
    "TensorFlow, copying": (
        (
            TF_INTERNAL,
            "Failed copying input tensor from /job:w/device:CPU:0 to /job:w/device:GPU:0 in order to run _EagerConst: "
            "Dst tensor is not initialized.",
        ),
        ("tensorflow", None, None, None),
    ),
    "JAX": (
        (JAX, "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."),
        ("jax", 16 * GIB, None, None),
    ),
    "JAX, older": (
        ("jaxlib.xla_extension.XlaRuntimeError", "RESOURCE_EXHAUSTED: Failed to allocate request for 16.00GiB (1B) on"),
        ("jax", 16 * GIB, None, None),
    ),
    "JAX before its own errors": (
        ("RuntimeError", "Resource exhausted: Out of memory while trying to allocate 1073741824 bytes."),
        ("jax", GIB, None, None),
    ),
    "JAX, TPU, compiling": (
        (
            JAX,
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 64.00G",
        ),
        ("jax", 64 * GIB, None, None),
    ),
    "JAX, TPU, running": (
        (JAX, "RESOURCE_EXHAUSTED: Attempting to allocate 3.00G. That was not possible. There are 1.92G free."),
        ("jax", 3 * GIB, None, None),
    ),
    "CuPy at its limit": (
        (
            CUPY_OOM,
            "Out of memory allocating 1,024 bytes (allocated so far: 20,480 bytes, limit set to: 20,992 bytes).",
        ),
        ("cupy", 1024, 20_992, "own_limit"),
    ),
    "CuPy just within its limit": (
        (CUPY_OOM, "Out of memory allocating 512 bytes (allocated so far: 20,000 bytes, limit set to: 20,992 bytes)."),
        ("cupy", 512, 20_992, "neighbour"),
    ),
    "CuPy without a limit": (
        (CUPY_OOM, "Out of memory allocating 1,024 bytes (allocated so far: 2,048 bytes)."),
        ("cupy", 1024, None, None),
    ),
    "CuPy, cuBLAS": (
        ("cupy_backends.cuda.libs.cublas.CUBLASError", "CUBLAS_STATUS_ALLOC_FAILED"),
        ("cupy", None, None, None),
    ),
    "RAPIDS, its pool": (
        (
            "MemoryError",
            "std::bad_alloc: out_of_memory: RMM failure at: pool_memory_resource.hpp:183: Maximum pool size exceeded",
        ),
        (None, None, None, None),
    ),
    "NCCL, its buffers": (
        (
            "torch.distributed.DistBackendError",
            "NCCL error in: x.cpp, unhandled cuda error\nLast error:\nFailed to CUDA calloc async 608 bytes",
        ),
        ("torch", None, None, None),
    ),
    "LightGBM": (
        ("lightgbm.basic.LightGBMError", "[CUDA] out of memory /tmp/cuda_utils.cpp 12"),
        (None, None, None, None),
    ),
    "bitsandbytes": (
        ("RuntimeError", "CUDA Error: out of memory at line 380 in file /src/csrc/pythonInterface.c"),
        (None, None, None, None),
    ),
    "Triton": (("RuntimeError", "Triton Error [CUDA]: out of memory"), (None, None, None, None)),
    "Triton, compiled by PyTorch": (
        ("torch._inductor.exc.InductorError", "RuntimeError: Triton Error [CUDA]: out of memory"),
        ("torch", None, None, None),
    ),
    "Intel's runtime": (
        ("RuntimeError", "Native API failed. Native API returns: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)"),
        (None, None, None, None),
    ),
    "Intel's older runtime": (
        ("RuntimeError", "Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES)"),
        (None, None, None, None),
    ),
    "a short error, quoted": (("RuntimeError", "step 3: CUDA out of memory"), ("torch", None, None, None)),
    "CatBoost, the driver": (
        ("_catboost.CatBoostError", "catboost/cuda/cuda_lib/cuda_base.h:281: CUDA error 2: out of memory"),
        (None, None, None, None),
    ),
    "CatBoost, its pool": (
        ("_catboost.CatBoostError", "memory_pool.h:303: Error: Out of memory. Requested 8880 MB; Free 59.1 MB"),
        (None, 8880 * 2**20, None, None),
    ),
    "ONNX Runtime": (
        ("onnxruntime.capi.onnxruntime_pybind11_state.Fail", "CUDA failure 2: out of memory ; GPU=0 ; hostname=a"),
        (None, None, None, None),
    ),
    "Gaudi": (
        ("RuntimeError", "[Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::268435456 (256)MB"),
        ("torch", None, None, None),
    ),
    "Paddle": (
        ("MemoryError", "\n\nOut of memory error on GPU 0. Cannot allocate 1.000000GB memory on GPU 0"),
        (None, GIB, None, None),
    ),
    "XGBoost with RAPIDS": (
        (
            "xgboost.core.XGBoostError",
            "Memory allocation error on worker 0: std::bad_alloc: out_of_memory: Maximum pool size exceeded\n"
            "- Free memory: 19.6MB\n- Requested memory: 1GB\n",
        ),
        (None, GIB, None, None),
    ),
    "TensorFlow, XLA": (
        (TF_EXHAUSTED, "Failed to allocate request for 16.00GiB (17179869184B) on device ordinal 0"),
        ("tensorflow", 16 * GIB, None, None),
    ),
    "Numba": (
        ("numba.cuda.cudadrv.driver.CudaAPIError", "[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"),
        (None, None, None, None),
    ),
    "XGBoost": (
        ("xgboost.core.XGBoostError", "Memory allocation error on worker 0: bad_allocation: cudaErrorMemoryAllocation"),
        (None, None, None, None),
    ),
    "the driver's error, quoted": (("RuntimeError", "step 3: CUDA error: out of memory"), ("torch", None, None, None)),
    "cudaMallocAsync's error, quoted": (
        ("RuntimeError", f"step 3: {ASYNC_TORCH}12.00 GiB"),
        ("torch", 10 * GIB, 12 * GIB, "own_limit"),
    ),
    "CuPy's error, quoted": (
        ("RuntimeError", "step 3: Out of memory allocating 1,024 bytes (allocated so far: 2,048 bytes)."),
        ("cupy", 1024, None, None),
    ),
    "JAX's error, quoted": (
        ("RuntimeError", "step 3: RESOURCE_EXHAUSTED: Failed to allocate request for 16.00GiB (17179869184B) on"),
        ("jax", 16 * GIB, None, None),
    ),
    "a TPU's compiler, quoted": (
        ("RuntimeError", "Compilation failure: Ran out of memory in memory space hbm. Used 8.00G of 7.00G hbm."),
        ("jax", 8 * GIB, None, None),
    ),
    "a replica's error with its traceback": (
        (
            "RuntimeError",
            "Caught RuntimeError in replica 0 on device 0.\nOriginal Traceback (most recent call last):\n"
            f'  File "a.py", line 1, in forward\n    raise ValueError("no")\nRuntimeError: {OLD_TORCH}\n',
        ),
        ("torch", 4 * GIB, 5 * GIB, "own_limit"),
    ),
}
"""Errors about device memory: the type and text, and the expected framework, requested bytes, limit and cause."""

HOST = {
    "Python": (("MemoryError", ""), ("python", None)),
    "NumPy": (
        (
            "numpy._core._exceptions._ArrayMemoryError",
            "Unable to allocate 8.00 GiB for an array with shape (1073741824,)",
        ),
        ("python", 8 * GIB),
    ),
    "the operating system": (("OSError", "[Errno 12] Cannot allocate memory"), ("python", None)),
    "C++": (("RuntimeError", "std::bad_alloc"), (None, None)),
    "a data loader of PyTorch": (
        ("RuntimeError", "DataLoader worker (pid 1234) is killed by signal: Killed. "),
        ("torch", None),
    ),
    "torch": (
        (
            "RuntimeError",
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 1073741824 bytes. Error code 12 (Cannot allocate memory)",
        ),
        ("torch", GIB),
    ),
    "cuDNN's host memory": (
        ("RuntimeError", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
        ("torch", None),
    ),
    "torch's shared memory": (
        ("RuntimeError", "unable to mmap 1073741824 bytes from file </torch_1>: Cannot allocate memory (12)"),
        ("torch", GIB),
    ),
    "TensorFlow": (
        (TF_EXHAUSTED, TF_ON_GPU.replace("GPU:0", "CPU:0").replace("GPU_0_bfc", "mklcpu")),
        ("tensorflow", GIB),
    ),
    "TensorFlow, without an allocator": (
        (
            TF_EXHAUSTED,
            "{{function_node __wrapped__Fill_device_/job:w/device:CPU:0}} failed to allocate memory [Op:Fill]",
        ),
        ("tensorflow", None),
    ),
    "JAX on a CPU": ((JAX, "RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes."), ("jax", 16 * GIB)),
    "JAX, pinned memory": (
        (
            JAX,
            "RESOURCE_EXHAUSTED: Out of host memory while trying to allocate 68719476736 bytes. Please set the "
            "environment variable XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB to allocate larger host memory than the default",
        ),
        ("jax", 64 * GIB),
    ),
}
"""Errors about host memory: the type and text, and the expected framework and requested bytes."""

KILLED_BY_RAY = {
    "Ray's memory monitor": ((RAY_OOM, RAY_260), GIB // 2),
    "Ray's memory monitor, quoted": (("RuntimeError", RAY_250), 25 * GIB // 2),
    "an actor killed by Ray's memory monitor": (("ray.exceptions.ActorDiedError", ACTOR_KILLED), 25 * GIB // 2),
    "several workers killed by Ray's memory monitor": (("ray.exceptions.RayActorError", SEVERAL_KILLED), 5 * GIB // 2),
}
"""Errors of Ray's memory monitor: the type and text, and the memory of the largest killed worker in bytes."""

NEAR_MISSES = {
    "a value that contains the word memory": ("ValueError", "batch_size=512 would run out of memory"),
    "an invalid call that quotes PyTorch": ("ValueError", torch_text()),
    "a remark on PyTorch's error": ("RuntimeError", "a CUDA out of memory error was handled earlier; retry failed"),
    "a sentence that ends like PyTorch's": ("RuntimeError", "the trial ran out of memory because CUDA out of memory."),
    "a budget": ("RuntimeError", "the replay memory ran out of budget"),
    "an error of the same name": ("shop.stock.OutOfMemoryError", "no memory modules left in stock"),
    "another CUDA error": ("torch.AcceleratorError", "CUDA error: an illegal memory access was encountered"),
    "cuBLAS initialization failed": (
        "RuntimeError",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate",
    ),
    "a kernel that needs too much shared memory": (
        "triton.runtime.errors.OutOfResources",
        "out of resource: shared memory, Required: 263168, Hardware limit: 232448. Reducing block sizes may help.",
    ),
    "a data loader that crashed": ("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Aborted. "),
    "a data loader without shared memory": (
        "RuntimeError",
        "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
        "shared memory. Please try to raise your shared memory limit.",
    ),
    "NCCL without a peer": ("torch.distributed.DistBackendError", NCCL.replace("'out of memory'", "'peer access'")),
    "a full disk, TensorFlow": (TF_EXHAUSTED, "/data/model.ckpt; No space left on device [Op:SaveV2]"),
    "another error of TensorFlow": ("tensorflow.python.framework.errors_impl.InvalidArgumentError", "out of memory"),
    "a quota, JAX": (JAX, "RESOURCE_EXHAUSTED: Quota exceeded for quota metric 'requests'"),
    "another error of CuPy": ("cupy_backends.cuda.api.runtime.CUDARuntimeError", "cudaErrorNoDevice: no CUDA device"),
    "a worker that died for an unknown reason": (
        "ray.exceptions.WorkerCrashedError",
        "The worker died unexpectedly. There are some potential root causes. (1) The process is killed by SIGKILL by "
        "OOM killer due to high memory usage. (2) ray stop --force is called.",
    ),
    "an actor that died for an unknown reason": (
        "ray.exceptions.ActorDiedError",
        "The actor died unexpectedly before finishing this task.\n\tclass_name: A\nThe actor is dead because its "
        "worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits. Some "
        "common causes include: (1) the process was killed by the OOM killer due to high memory usage, (2) ray stop",
    ),
    "a traceback with a source line that mentions it": (
        "ray.exceptions.RayTaskError(ValueError)",
        'ray::f() (pid=1, ip=10.0.0.1)\n  File "a.py", line 3, in f\n'
        '    raise ValueError("no torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")\n'
        "ValueError: no torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    ),
}
"""Errors that are not OOM errors: the type and text."""

_BASES = {
    CUPY_OOM: MemoryError,
    "numpy._core._exceptions._ArrayMemoryError": MemoryError,
    "pyarrow.lib.ArrowMemoryError": MemoryError,
    "xgboost.core.XGBoostError": ValueError,
}


def build(name, text):
    """Return an error of a new type with this full name, or of a built-in type if the name has no module."""
    module, _, qualname = name.rpartition(".")
    if not module:
        return getattr(builtins, name)(text)
    return type(qualname, (_BASES.get(name, RuntimeError),), {"__module__": module})(text)
