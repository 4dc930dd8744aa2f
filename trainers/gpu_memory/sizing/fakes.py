"""Fake tensors, which have shapes and no data: what makes them, what follows them, and models that are made of them.

Much here is private to PyTorch, which has no public way to know a training's memory before it runs.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tune_policies.errors import MeasurementError


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
