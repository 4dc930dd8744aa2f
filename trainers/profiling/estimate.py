"""Estimates the GPU memory of training a PyTorch model before the training runs, without a GPU.

The model consists of fake tensors, which have shapes but no data. Two training steps are tracked tensor by tensor,
because the optimizer's state only exists from the second step on.

This module uses private parts of PyTorch, because PyTorch has no public API to track memory without running the model.
"""

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.plan.default_overhead import TORCH_OVERHEAD_BYTES
from tune_policies.values.errors import MeasurementError
from tune_policies.values.resources import Bytes, UsedBytes
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import format_bytes, parse_memory
from tune_policies.values.value import Value

from .estimate_arguments import check_arguments, check_optimizer_instance, hint_for
from .estimate_gpus import about_fit, gpus_to_use


def fakes() -> tuple[Any, Any]:
    """Return the mode that creates fake tensors, and the tracker of their memory.

    Raises:
        MeasurementError: PyTorch is not installed or is too old.
    """
    try:
        import torch
    except ImportError as error:
        raise MeasurementError(
            "the estimate requires PyTorch, which is not installed. Run pip install torch, or use measure_gpu_memory"
        ) from error
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.distributed._tools.mem_tracker import MemTracker
    except ImportError as error:
        raise MeasurementError(
            f"PyTorch {torch.__version__} cannot track a model's tensors, because it has no MemTracker. Install "
            "PyTorch 2.5 or later, or use measure_gpu_memory"
        ) from error

    class OneMode(FakeTensorMode):  # type: ignore[no-untyped-call]
        def __deepcopy__(self, memo: object) -> "OneMode":
            return self  # otherwise, copied layers, as in nn.TransformerEncoder, would have another mode

    class Tracker(MemTracker):  # type: ignore[no-untyped-call]
        def _track_module_params_and_buffers(self, module: Any, install_grad_hooks: bool = True) -> Any:
            # PyTorch's method installs a gradient hook on each parameter that has none. This fails for a frozen
            # parameter, so give it a dummy hook.
            for parameter in module.parameters():
                if not parameter.requires_grad:
                    none = SimpleNamespace(remove=lambda: None)
                    self._param_to_grad_hook_handles.setdefault(parameter, (none, none))  # type: ignore[no-untyped-call]
            return super()._track_module_params_and_buffers(module, install_grad_hooks)

    # Real tensors of a loss or a model, such as class weights, become fake when they are used.
    return OneMode(allow_non_fake_inputs=True), Tracker()


def as_fake(model: Any, fake_mode: Any) -> Any:
    """Return the model, or a copy in which fake tensors replace all real parameters and buffers.

    Other tensors of the model, such as a mask in an attribute, are copied. They become fake when they are used.
    """
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    tensors = [*model.parameters(), *model.buffers()]
    if all(is_fake(tensor) for tensor in tensors):
        return model

    def faked(tensor: Any) -> Any:
        if is_fake(tensor):
            return tensor
        fake = fake_mode.from_tensor(tensor.detach())
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        if is_parameter:
            return torch.nn.Parameter(fake, tensor.requires_grad)
        return fake

    # ``deepcopy`` takes each tensor from its memo, which maps the ID of an object to the copy, instead of copying it.
    copies = {id(tensor): faked(tensor) for tensor in tensors}
    # In the fake mode, ``deepcopy`` of any other tensor fails, because its fake copy cannot have a real storage.
    with unset_fake_temporarily():
        return copy.deepcopy(model, copies)


def is_fake(tensor: Any) -> bool:
    """Return whether ``tensor`` is a fake tensor."""
    return hasattr(tensor, "fake_mode")


@contextmanager
def convertible() -> Iterator[None]:
    """Make ``.half()``, ``.to(…)`` and similar conversions work for modules with fake parameters.

    Without this context manager, PyTorch swaps the contents of each parameter. This fails because the fake mode has
    weak references to the parameters, and no setting in ``torch.__future__`` prevents it for fake tensors
    (``torch.nn.Module._apply``, PyTorch 2.13). So the method is replaced: it gives the module a new parameter for each
    parameter. Modules with real parameters are converted as usual, including modules in other threads.
    """
    import torch

    module_class: Any = torch.nn.Module
    original = module_class._apply
    # Each key contains the IDs of a parameter and a function, so that shared parameters stay shared. The values keep
    # references, so that Python does not reuse the IDs.
    converted: dict[tuple[int, int], tuple[Any, ...]] = {}

    def convert(module: Any, function: Any, recurse: bool = True) -> Any:
        if not any(is_fake(parameter) for parameter in module.parameters()):
            return original(module, function, recurse)
        if recurse:
            for child in module.children():
                child._apply(function)  # modules such as nn.LSTM override ``_apply``
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            key = id(parameter), id(function)
            if key not in converted:
                with torch.no_grad():
                    new = torch.nn.Parameter(function(parameter), parameter.requires_grad)
                converted[key] = converted[id(new), id(function)] = (new, parameter, function)
            module._parameters[name] = converted[key][0]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = function(buffer)
        return module

    module_class._apply = convert
    try:
        yield
    finally:
        module_class._apply = original


_NOT_INCLUDED: Final = (
    "workspaces of cuBLAS and cuDNN, which depend on the chosen kernels",
    "rounding and fragmentation of the allocator",
    "automatic mixed precision, torch.compile and CUDA graphs, unless model_fn enables them",
    "parts of the model that depend on the data, and custom CUDA kernels",
    "buffers of NCCL, and other frameworks in the same process",
)


_ASSUMED_LOSS: Final = "your loss: without loss_fn, it is assumed to be the mean of the output"


class GpuMemoryEstimate(Value):
    """The GPU memory of a training step at its peak, in bytes.

    The first four fields add up to ``peak_bytes``.

    Attributes:
        parameters_bytes: The parameters and buffers of the model.
        gradients_bytes: The gradients that exist at the peak.
        optimizer_bytes: The optimizer's state, and temporary memory of its step.
        activations_bytes: The batch, the activations for the backward pass, and temporary memory of this pass.
        peak_bytes: All tensors at the peak.
        overhead_bytes: A safe default for memory outside the allocator.
        unknown: Descriptions of memory that the estimate does not include, and that the headroom must cover.
    """

    parameters_bytes: UsedBytes
    gradients_bytes: UsedBytes
    optimizer_bytes: UsedBytes
    activations_bytes: UsedBytes
    peak_bytes: UsedBytes
    overhead_bytes: Bytes = TORCH_OVERHEAD_BYTES
    unknown: tuple[str, ...] = _NOT_INCLUDED

    @property
    def total_bytes(self) -> int:
        """The sum of the peak and the overhead, in bytes. Pass it to ``GpuMemoryPolicy(gpu_memory=…)``."""
        return self.peak_bytes + self.overhead_bytes

    def explain(
        self,
        capacity: ClusterCapacity | None = None,
        *,
        accelerator_type: str | None = None,
        gpu_memory: int | str | None = None,
    ) -> str:
        """Return a text with the estimated total, its parts, and the memory that is not included.

        The text also says on which GPUs the training fits.

        Args:
            capacity: The cluster whose GPUs the training may use; ``None`` for the NVIDIA GPUs that Ray has types for.
            accelerator_type: The type of the GPUs, such as ``"A100-40G"``; ``None`` for GPUs of any type.
            gpu_memory: The memory of a GPU: bytes, or a string such as ``"24GiB"``. ``None`` for the memory of the
                cluster's GPUs or of the type.

        Raises:
            InvalidResourcesError: The type is unknown, or the memory is not an amount.
        """
        parts = {
            "parameters": self.parameters_bytes,
            "gradients that exist at this moment": self.gradients_bytes,
            "state of the optimizer and temporary memory of its step": self.optimizer_bytes,
            "batch, activations and temporary tensors": self.activations_bytes,
            "outside the allocator (safe default)": self.overhead_bytes,
        }
        lines = [f"{format_bytes(self.total_bytes)} of GPU memory, estimated. At the peak of a training step:"]
        lines += [f"  {format_bytes(amount)} {name}" for name, amount in parts.items()]
        if self.gradients_bytes < self.parameters_bytes / 2:
            lines.append("  (at this moment, most gradients do not exist yet)")
        lines += [f"  - not included: {part}" for part in self.unknown]
        gpu_memory_bytes = None
        if gpu_memory is not None:
            gpu_memory_bytes = parse_memory(gpu_memory, name="gpu_memory")
        gpus = gpus_to_use(capacity, accelerator_type, gpu_memory_bytes, self.total_bytes)
        fit, amount = about_fit(self.total_bytes, gpus)
        lines += [fit, f'write GpuMemoryPolicy(gpu_memory="{amount}")']
        return "\n".join(map(one_line, lines))


def estimate_gpu_memory(
    model_fn: Callable[[], Any],
    batch: Any = None,
    optimizer: Callable[[Any], Any] | None = None,
    loss_fn: Callable[[Any, Any], Any] | None = None,
) -> GpuMemoryEstimate:
    """Return an estimate of the GPU memory for training a PyTorch model, without a GPU and without training.

    Args:
        model_fn: Builds the model on the default device, without ``.cuda()``. If it returns an existing model, the
            model is copied without its data.
        batch: Required. The input of the model: a tensor, a tuple of arguments or a dict of keyword arguments, or a
            function that returns such an input. A tuple of integers is the shape of a tensor with the model's dtype.
            With ``loss_fn``, the batch is a pair of the input and the targets.
        optimizer: Creates the optimizer from the parameters, such as ``torch.optim.AdamW``.
        loss_fn: Returns the loss for an output and its targets. The default is the output's attribute ``loss``, or the
            mean of the output.

    Raises:
        InvalidResourcesError: An argument has the wrong type, or the batch is missing.
        MeasurementError: The model cannot be built, rejects the batch, or cannot run without data, or PyTorch is not
            installed or is too old.
    """
    fake_mode, tracker = fakes()
    check_arguments(model_fn, batch, optimizer, loss_fn)
    with warnings.catch_warnings(), _without_logged_errors(), fake_mode:
        warnings.simplefilter("ignore")  # PyTorch warns that modules no longer exist when gradients are computed
        with convertible():
            built = _attempt("model_fn failed without data", model_fn)
        model = _attempt("model_fn did not return a torch.nn.Module", lambda: as_fake(built, fake_mode))
        parameters = list(model.parameters())
        device = "cpu"
        if parameters:
            device = parameters[0].device
        # A shape as the batch gets the type of the model, such as float16 after ``.half()``.
        dtype = next((parameter.dtype for parameter in parameters if parameter.is_floating_point()), None)
        inputs, targets = _attempt(
            "the batch cannot be created", lambda: _split(_faked(batch, fake_mode, device, dtype), loss_fn)
        )
        steps = None
        if optimizer is not None:
            steps = _attempt("the optimizer cannot be created", lambda: optimizer(parameters))
            check_optimizer_instance(steps)
            _update_together(steps)
        is_loss_assumed = False
        tracker.track_external(model)
        with tracker:
            output = loss = None
            # The optimizer creates its state in the first step, so the peak is that of the second step.
            for _ in range(2):
                # As in a training loop, so that no gradients of the first step add to the peak of the second.
                model.zero_grad()
                # The batch exists before the step, so the tracker does not see how it is created.
                tracker.track_external(*_tensors((inputs, targets)))
                output = _attempt(
                    "the model rejects the batch, or depends on the values in the batch",
                    lambda: _called(model, inputs),
                    inputs,
                )
                loss = _attempt(
                    "loss_fn failed",
                    lambda: _loss(output, targets, loss_fn),  # noqa: B023 - called here
                    (inputs, targets),
                )
                is_loss_assumed = loss_fn is None and getattr(output, "loss", None) is None
                _attempt("the backward pass failed", loss.backward)
                if steps is not None:
                    _attempt("the optimizer's step failed", steps.step)
                tracker.reset_mod_stats()
    estimate = _estimate(tracker.get_tracker_snapshot("peak"), device)
    if is_loss_assumed:
        return estimate.model_copy(update={"unknown": (_ASSUMED_LOSS, *_NOT_INCLUDED)})
    return estimate


def _update_together(optimizer: Any) -> None:
    """Let the optimizer update all parameters together, as it does on a GPU. This requires more temporary memory."""
    for group in optimizer.param_groups:
        is_default = group.get("foreach", False) is None and not group.get("fused")
        if is_default:
            group["foreach"] = True


def _attempt(what: str, call: Callable[[], Any], tensors: Any = None) -> Any:
    """Call the user's code. An error names the part that failed, and what to write instead, if that is known."""
    try:
        return call()
    except Exception as error:  # an error of the user's code
        failed = f"no estimate is possible because {what}: {type(error).__name__}: {error}"
        raise MeasurementError(f"{failed.rstrip('.!')}{hint_for(error, tensors)}") from error


@contextmanager
def _without_logged_errors() -> Iterator[None]:
    """Suppress the tracebacks that PyTorch logs for errors on fake tensors. The error itself is raised."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _faked(batch: Any, fake_mode: Any, device: Any, dtype: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map

    def fake(leaf: Any) -> Any:
        if _is_shape(leaf):
            return torch.empty(leaf, device=device, dtype=dtype)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if not is_fake(leaf):
            leaf = fake_mode.from_tensor(leaf)
        return leaf.to(device)

    if callable(batch):
        batch = batch()
    return tree_map(fake, batch, is_leaf=_is_shape)


def _is_shape(batch: Any) -> bool:
    return isinstance(batch, tuple) and bool(batch) and all(type(size) is int for size in batch)


def _split(batch: Any, loss_fn: object) -> tuple[Any, Any]:
    if loss_fn is None:
        return batch, None
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise ValueError("with loss_fn, the batch must be a pair of the model's input and the targets")
    return batch[0], batch[1]


def _tensors(batch: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]


def _called(model: Any, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def _loss(output: Any, targets: Any, loss_fn: Callable[[Any, Any], Any] | None) -> Any:
    if loss_fn is not None:
        return loss_fn(output, targets)
    if getattr(output, "loss", None) is not None:
        return output.loss
    means = [tensor.float().mean() for tensor in _tensors(output) if tensor.requires_grad]
    if not means:
        raise ValueError("the output has no tensor that depends on a parameter")
    return sum(means[1:], means[0])


def _estimate(snapshot: dict[Any, dict[Any, int]], device: Any) -> GpuMemoryEstimate:
    found = next((parts for at, parts in snapshot.items() if str(at) == str(device)), {})
    # The keys of PyTorch's snapshot are members of an enum, except the text "Total".
    by_name = {str(getattr(name, "value", name)): amount for name, amount in found.items()}
    peak = by_name.pop("Total", 0)
    parts = {
        "parameters_bytes": by_name.pop("Parameter", 0) + by_name.pop("Buffer", 0),
        "gradients_bytes": by_name.pop("Gradient", 0),
        "optimizer_bytes": by_name.pop("Optstate", 0),
    }
    return GpuMemoryEstimate(**parts, activations_bytes=peak - sum(parts.values()), peak_bytes=peak)
