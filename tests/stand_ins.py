"""Stand-ins for the packages ``cupy`` and ``pynvml`` in processes without a GPU.

They contain only the functions that this project uses. CuPy's memory pool has no real memory, and NVML's readings come
from a file, or from the files in which running processes state their use.
"""

import json

CUPY = '''
"""CuPy's memory pool on a device of 16 GiB without real memory; STAND_IN_ALLOCATOR replaces the allocator."""
import os, sys, types

DEVICE_BYTES = 16 * 2**30

class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit):
        self.of = size, total, limit
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes, "
                         f"limit set to: {limit:,} bytes).")
    def __reduce__(self): return type(self), self.of

class Pool:
    def __init__(self): self.used = self.total = 0; self.limit = DEVICE_BYTES
    def used_bytes(self): return self.used
    def total_bytes(self): return self.total
    def free_all_blocks(self, stream=None): self.total = self.used
    def set_limit(self, size=None, fraction=None): self.limit = int(fraction * DEVICE_BYTES) if size is None else size
    def get_limit(self): return self.limit
    def malloc(self, size): return Array(size)

class Array:
    size = 0
    def __init__(self, size):
        if _pool.used + size > _pool.limit: raise OutOfMemoryError(size, _pool.total, _pool.limit)
        self.size = size; _pool.used += size; _pool.total = max(_pool.total, _pool.used)
    def __del__(self): _pool.used -= self.size

class Device:
    def __init__(self, index=0): self.id = index
    def __enter__(self): return self
    def __exit__(self, *_): pass

_pool = Pool()
get_default_memory_pool = lambda: _pool
empty = Array
__version__ = "14.0.0"

cuda = types.ModuleType("cupy.cuda")
cuda.is_available = lambda: True
cuda.Device = Device
cuda.runtime = types.SimpleNamespace(
    getDeviceCount=lambda: 1, getDeviceProperties=lambda index: {"totalGlobalMem": DEVICE_BYTES, "name": b"Stand-in"}
)
cuda.memory = types.ModuleType("cupy.cuda.memory")
cuda.memory.OutOfMemoryError = OutOfMemoryError
cuda.get_allocator = lambda: print if "STAND_IN_ALLOCATOR" in os.environ else _pool.malloc
OutOfMemoryError.__module__ = "cupy.cuda.memory"
sys.modules["cupy.cuda"] = cuda
sys.modules["cupy.cuda.memory"] = cuda.memory
'''

PYNVML = '''
"""NVML's counts from the file in STAND_IN_NVML; "self" is the calling process."""
import json, os
from types import SimpleNamespace

class NVMLError(Exception): pass

def _state():
    try:
        with open(os.environ["STAND_IN_NVML"]) as file: return json.load(file)
    except (KeyError, FileNotFoundError): raise NVMLError("Driver Not Loaded")

def nvmlInit(): _state()
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return _state()["devices"]
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return "Stand-in"
def nvmlDeviceGetUUID(handle): return f"GPU-{handle}"
def nvmlDeviceGetMemoryInfo(handle):
    state = _state()
    return SimpleNamespace(total=state["total"], free=state["free"], used=state["total"] - state["free"])
def nvmlDeviceGetComputeRunningProcesses(handle):
    processes = {os.getpid() if pid == "self" else int(pid): use for pid, use in _state()["processes"].items()}
    return [SimpleNamespace(pid=pid, usedGpuMemory=use) for pid, use in processes.items()]
'''

PYNVML_OF_PROCESSES = '''
"""Two GPUs of 16 GiB. The file PID in the folder STAND_IN_GPUS states what a process uses: device, bytes and busy."""
import json, os
from types import SimpleNamespace

TOTAL = 16 * 2**30

class NVMLError(Exception): pass

def _folder():
    try: return os.environ["STAND_IN_GPUS"]
    except KeyError: raise NVMLError("Driver Not Loaded")

def _uses(handle):
    uses = {}
    for pid in os.listdir(_folder()):
        if pid.isdecimal() and os.path.exists(f"/proc/{pid}"):
            with open(f"{_folder()}/{pid}") as file: use = json.load(file)
            if use["device"] == handle: uses[int(pid)] = use
    return uses

def nvmlInit(): _folder()
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return "Stand-in"
def nvmlDeviceGetUUID(handle): return f"GPU-{handle}"
def nvmlDeviceGetMemoryInfo(handle):
    used = sum(use["bytes"] for use in _uses(handle).values())
    return SimpleNamespace(total=TOTAL, free=TOTAL - used, used=used)
def nvmlDeviceGetComputeRunningProcesses(handle):
    return [SimpleNamespace(pid=pid, usedGpuMemory=use["bytes"]) for pid, use in _uses(handle).items()]
def nvmlDeviceGetUtilizationRates(handle):
    return SimpleNamespace(gpu=min(100, round(100 * sum(use["busy"] for use in _uses(handle).values()))))
'''


def write_stand_ins(folder):
    """Write both packages to ``folder``. Return the path of the file from which ``pynvml`` reads."""
    (folder / "cupy.py").write_text(CUPY)
    (folder / "pynvml.py").write_text(PYNVML)
    return folder / "nvml.json"


def state_counts(path, *, total, free, processes=(), devices=1):
    """Write the readings that ``pynvml`` returns. They are equal for all devices."""
    path.write_text(json.dumps({"total": total, "free": free, "processes": dict(processes), "devices": devices}))
