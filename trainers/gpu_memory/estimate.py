"""How much GPU memory a PyTorch training will take, before anything runs and without a GPU.

The model is built of fake tensors, which have shapes and no data, so a model of any size costs nothing. Two training
steps are followed tensor by tensor: the second finds the optimizer's state in place.

Much here is private to PyTorch, which has no public way to know a
training's memory before it runs.
"""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

from tune_policies.plan.gpu_memory_profile import TORCH_OVERHEAD_BYTES
from tune_policies.values.errors import MeasurementError
from tune_policies.values.resources import Bytes, UsedBytes
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import format_bytes
from tune_policies.values.value import Value


def fakes() -> tuple[Any, Any]:
    """Return what makes tensors fake, and what follows them.

    Raises:
        MeasurementError: PyTorch is not installed, or has not got them.
    """
    try:
        import torch
    except ImportError as error:
        raise MeasurementError("an estimate needs PyTorch: pip install torch, or measure_gpu_memory instead") from error
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.distributed._tools.mem_tracker import MemTracker
    except ImportError as error:
        raise MeasurementError(
            f"PyTorch {torch.__version__} cannot follow a model's tensors (MemTracker): take PyTorch 2.5 or newer, or "
            "measure_gpu_memory instead"
        ) from error

    class OneMode(FakeTensorMode):  # type: ignore[no-untyped-call]
        def __deepcopy__(self, memo: object) -> "OneMode":
            return self  # a layer that is copied, as in nn.TransformerEncoder, would bring a mode of its own

    class Tracker(MemTracker):  # type: ignore[no-untyped-call]
        def _track_module_params_and_buffers(self, module: Any, install_grad_hooks: bool = True) -> Any:
            # It hooks the gradient of each parameter that it has no hooks of, and a frozen one refuses that.
            for parameter in module.parameters():
                if not parameter.requires_grad:
                    none = SimpleNamespace(remove=lambda: None)
                    self._param_to_grad_hook_handles.setdefault(parameter, (none, none))  # type: ignore[no-untyped-call]
            return super()._track_module_params_and_buffers(module, install_grad_hooks)

    # What a loss or a model brings of real tensors, such as the weights of its classes, becomes fake as it is used.
    return OneMode(allow_non_fake_inputs=True), Tracker()


def as_fake(model: Any, fake_mode: Any) -> Any:
    """Return a model whose parameters and buffers are fake: itself, or a copy where some of them are real."""
    import torch

    tensors = [*model.parameters(), *model.buffers()]
    if all(is_fake(tensor) for tensor in tensors):
        return model

    def faked(tensor: Any) -> Any:
        if is_fake(tensor):
            return tensor
        fake = fake_mode.from_tensor(tensor.detach())
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        return torch.nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake

    return copy.deepcopy(model, {id(tensor): faked(tensor) for tensor in tensors})


def is_fake(tensor: Any) -> bool:
    """Return whether a tensor has no data."""
    return hasattr(tensor, "fake_mode")


@contextmanager
def convertible() -> Iterator[None]:
    """Let models of fake parameters be converted, as ``.half()`` and ``.to(…)`` do.

    PyTorch would swap each for its converted one, and refuses, as the mode holds weak references to them all. Here the
    module takes the new one in its place. Modules of real parameters are converted as ever, in other threads too.
    """
    import torch

    module_class: Any = torch.nn.Module
    original = module_class._apply
    # By parameter and conversion: one that two modules share stays one. All are kept, or their ids would be used again.
    converted: dict[tuple[int, int], tuple[Any, ...]] = {}

    def convert(module: Any, function: Any, recurse: bool = True) -> Any:
        if not any(is_fake(parameter) for parameter in module.parameters()):
            return original(module, function, recurse)
        for child in module.children() if recurse else ():
            child._apply(function)  # which a module may have its own of, as nn.LSTM does
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


NOT_KNOWN: Final = (
    "workspaces of cuBLAS and cuDNN, and which kernels they choose",
    "what the allocator rounds up and cannot use again",
    "automatic mixed precision, torch.compile and CUDA graphs, unless model_fn brings them",
    "parts of the model that depend on the data, and custom CUDA kernels",
    "buffers of NCCL, and other frameworks in the same process",
)
"""What tensors alone do not tell."""


class GpuMemoryEstimate(Value):
    """What a training step will take of a GPU's memory, at its peak.

    The first four parts add up to ``peak_bytes``.

    Attributes:
        parameters_bytes: Parameters and buffers of the model.
        gradients_bytes: Gradients of the parameters, as far as they are there at the peak.
        optimizer_bytes: The optimizer's state, and what its step takes for a moment.
        activations_bytes: The batch, the activations that are kept for the backward pass, and what that takes for a
            moment.
        peak_bytes: All tensors at once, at the most.
        overhead_bytes: What the framework uses outside its allocator: a safe figure, not a measured one.
        unknown: What the estimate cannot know, so that the headroom must be enough for it.
    """

    parameters_bytes: UsedBytes
    gradients_bytes: UsedBytes
    optimizer_bytes: UsedBytes
    activations_bytes: UsedBytes
    peak_bytes: UsedBytes
    overhead_bytes: Bytes = TORCH_OVERHEAD_BYTES
    unknown: tuple[str, ...] = NOT_KNOWN

    @property
    def total_bytes(self) -> int:
        """What ``GpuMemoryPolicy(gpu_memory=…)`` is asked for: the peak and the overhead."""
        return self.peak_bytes + self.overhead_bytes

    def explain(self) -> str:
        """Return the estimate as text: the parts, the sum, and what is not in it."""
        parts = {
            "parameters": self.parameters_bytes,
            "gradients": self.gradients_bytes,
            "optimizer": self.optimizer_bytes,
            "batch and activations": self.activations_bytes,
            "outside the allocator (a safe figure)": self.overhead_bytes,
        }
        lines = [f"{format_bytes(self.total_bytes)} of GPU memory, estimated"]
        lines += [f"  {format_bytes(amount)} {name}" for name, amount in parts.items()]
        return "\n".join(map(one_line, [*lines, *(f"  - not known: {each}" for each in self.unknown)]))


def estimate_gpu_memory(
    model_fn: Callable[[], Any],
    batch: Any,
    optimizer: Callable[[Any], Any] | None = None,
    loss_fn: Callable[[Any, Any], Any] | None = None,
) -> GpuMemoryEstimate:
    """Return what training a PyTorch model will take of a GPU. Nothing is computed, and no GPU is needed.

    Args:
        model_fn: Builds the model on the default device: without ``.cuda()``. If it returns a model that already
            exists, a copy without data is followed.
        batch: What the model takes: a tensor, a tuple of its arguments or a dict of its keyword arguments; or a
            function that returns it. A tuple of whole numbers counts as the shape of a tensor with numbers of the
            model's type. With ``loss_fn`` it is a pair: the batch, and the targets.
        optimizer: Makes the optimizer from the parameters, such as ``torch.optim.AdamW``; ``None``: no optimizer.
        loss_fn: The loss of an output and its targets; ``None``: the output's own ``loss``, or else its mean.

    Raises:
        MeasurementError: The model cannot be built, does not take the batch, or cannot be followed without data; or
            the installed PyTorch cannot follow tensors.
    """
    fake_mode, tracker = fakes()
    with warnings.catch_warnings(), fake_mode:
        warnings.simplefilter("ignore")  # of modules that are gone when their gradients come, which cost nothing
        with convertible():
            built = _tried("model_fn failed without data", model_fn)
        model = _tried("model_fn must return a torch.nn.Module", lambda: as_fake(built, fake_mode))
        parameters = list(model.parameters())
        device = parameters[0].device if parameters else "cpu"
        dtype = next((each.dtype for each in parameters if each.is_floating_point()), None)
        inputs, targets = _tried(
            "the batch cannot be made", lambda: _split(_faked(batch, fake_mode, device, dtype), loss_fn)
        )
        steps = _tried("optimizer failed", lambda: optimizer(parameters)) if optimizer else None
        for group in steps.param_groups if steps is not None else ():
            # On a GPU, PyTorch's optimizers step over all parameters at once, which takes more memory for a moment.
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True
        tracker.track_external(model)
        with tracker:
            output = loss = None
            for _ in range(2):
                if steps is not None:
                    steps.zero_grad()
                else:
                    model.zero_grad()
                tracker.track_external(*_tensors((inputs, targets)))
                output = _tried(
                    "the model does not take the batch, or goes by its data", lambda: _called(model, inputs)
                )
                loss = _tried("loss_fn failed", lambda: _loss(output, targets, loss_fn))  # noqa: B023 - called at once
                _tried("the backward pass failed", loss.backward)
                if steps is not None:
                    _tried("the optimizer's step failed", steps.step)
                tracker.reset_mod_stats()
    return _estimate(tracker.get_tracker_snapshot("peak"), device)


def _tried(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # whatever the user's model raises
        raise MeasurementError(f"no estimate, as {what}: {type(error).__name__}: {error}") from error


def _faked(batch: Any, fake_mode: Any, device: Any, dtype: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map

    def fake(leaf: Any) -> Any:
        if isinstance(leaf, _Shape):
            return torch.empty(leaf.sizes, device=device, dtype=dtype)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return (leaf if is_fake(leaf) else fake_mode.from_tensor(leaf)).to(device)

    return tree_map(fake, _with_shapes(batch() if callable(batch) else batch))


class _Shape:
    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes


def _with_shapes(batch: Any) -> Any:
    if isinstance(batch, tuple) and batch and all(type(each) is int for each in batch):
        return _Shape(batch)
    if type(batch) in (tuple, list):
        return type(batch)(_with_shapes(each) for each in batch)
    return {name: _with_shapes(each) for name, each in batch.items()} if type(batch) is dict else batch


def _split(batch: Any, loss_fn: object) -> tuple[Any, Any]:
    if loss_fn is None:
        return batch, None
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise ValueError("with loss_fn, the batch is a pair of what the model takes and the targets")
    return batch[0], batch[1]


def _tensors(batch: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]


def _called(model: Any, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


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
    by_name = {str(getattr(name, "value", name)): amount for name, amount in found.items()}
    peak = by_name.pop("Total", 0)
    parts = {
        "parameters_bytes": by_name.pop("Parameter", 0) + by_name.pop("Buffer", 0),
        "gradients_bytes": by_name.pop("Gradient", 0),
        "optimizer_bytes": by_name.pop("Optstate", 0),
    }
    return GpuMemoryEstimate(**parts, activations_bytes=peak - sum(parts.values()), peak_bytes=peak)
