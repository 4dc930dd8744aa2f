"""What a measured process has in common with a trial: how it is set up, and what is known of its GPU memory.

The trainers are imported by the name that no user's package has; a type checker knows them by their first one only.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainers.gpu_memory.use.counters import read_counters
    from trainers.gpu_memory.use.leaks import end_gpu_processes
    from trainers.gpu_memory.use.usage import peak_gpu_memory_bytes
    from trainers.process import ProcessSetup, limit_options
else:
    from tune_policies.trainers.gpu_memory.use.counters import read_counters
    from tune_policies.trainers.gpu_memory.use.leaks import end_gpu_processes
    from tune_policies.trainers.gpu_memory.use.usage import peak_gpu_memory_bytes
    from tune_policies.trainers.process import ProcessSetup, limit_options

__all__ = ["ProcessSetup", "end_gpu_processes", "limit_options", "peak_gpu_memory_bytes", "read_counters"]
