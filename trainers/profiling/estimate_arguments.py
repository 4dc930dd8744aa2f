"""Checks the arguments of ``estimate_gpu_memory``, and shows the form to write instead of a wrong one.

A wrong argument would otherwise fail inside PyTorch with a ``TypeError`` that does not name the argument.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any, Final

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import most_similar, shorten


def check_arguments(model_fn: Any, batch: Any, optimizer: Any, loss_fn: Any) -> None:
    """Raise an ``InvalidResourcesError`` with the form to write if an argument has the wrong type."""
    _check_model(model_fn)
    _check_batch(batch)
    if optimizer is not None:
        _check_optimizer(optimizer)
    if loss_fn is not None:
        _check_loss(loss_fn)


def check_optimizer_instance(made: Any) -> None:
    """Raise an ``InvalidResourcesError`` if the function ``optimizer`` did not return an optimizer."""
    if not (hasattr(made, "param_groups") and callable(getattr(made, "step", None))):
        raise InvalidResourcesError(
            f"optimizer must return an optimizer of PyTorch, but returned {shorten(made)}. Pass a class or a function "
            "such as lambda parameters: torch.optim.AdamW(parameters, lr=0.001)"
        )


def _check_model(model_fn: Any) -> None:
    import torch

    if isinstance(model_fn, torch.nn.Module):
        raise InvalidResourcesError(
            "model_fn must be a function that builds the model, but is a model. Write "
            "estimate_gpu_memory(lambda: model, batch)"
        )
    # A class whose arguments have defaults is itself a function that builds a model.
    is_model_class = isinstance(model_fn, type) and issubclass(model_fn, torch.nn.Module)
    if callable(model_fn) and accepts(model_fn) and (is_model_class or not isinstance(model_fn, type)):
        return
    if is_model_class:
        raise InvalidResourcesError(
            f"model_fn must be a function without arguments, but the class {model_fn.__name__} needs arguments. Write "
            f"estimate_gpu_memory(lambda: {model_fn.__name__}(…), batch)"
        )
    raise InvalidResourcesError(
        f"model_fn must be a function without arguments that returns a torch.nn.Module, but is {describe(model_fn)}. "
        "Write estimate_gpu_memory(lambda: build_model(config), batch), with your function that builds the model. On a "
        "machine with a GPU, measure_gpu_memory(train_fn, [config]) measures a trainable without changes"
    )


def _check_batch(batch: Any) -> None:
    import torch

    if batch is None:
        raise InvalidResourcesError(
            "batch is missing. Pass an input of the model, or its shape, such as "
            "estimate_gpu_memory(model_fn, batch=(32, 100)) for 32 samples with 100 values each"
        )
    if isinstance(batch, int | float):
        # A number is usually meant as the batch size, so the advice repeats it as the number of samples.
        num_samples = 32
        if type(batch) is int and batch > 0:
            num_samples = batch
        raise InvalidResourcesError(
            f"batch must be an input of the model, got {shorten(batch)}. Write the shape of an input, such as "
            f"batch=({num_samples}, 100)"
        )
    if isinstance(batch, torch.utils.data.DataLoader):
        raise InvalidResourcesError(
            "batch is a DataLoader, but must be one batch. Write batch=next(iter(loader)), and pass loss_fn if the "
            "batch contains targets"
        )


def _check_optimizer(optimizer: Any) -> None:
    import torch

    if isinstance(optimizer, str):
        name = most_similar(optimizer, _optimizers()) or "AdamW"
        raise InvalidResourcesError(
            f"optimizer must be a class or a function, got {shorten(optimizer)}. Write optimizer=torch.optim.{name}"
        )
    if isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidResourcesError(
            "optimizer must be a class or a function of the parameters, but is an optimizer with its own parameters. "
            f"Write optimizer=lambda parameters: {_rebuilt(optimizer)}"
        )
    if not (callable(optimizer) and accepts(optimizer, [])):
        raise InvalidResourcesError(
            f"optimizer must be a class or a function of the parameters, but is {describe(optimizer)}. Write "
            "optimizer=torch.optim.AdamW or optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.001)"
        )


def _check_loss(loss_fn: Any) -> None:
    import torch

    if isinstance(loss_fn, type) and issubclass(loss_fn, torch.nn.Module):
        arguments = "" if accepts(loss_fn) else "…"
        raise InvalidResourcesError(
            f"loss_fn must be a function of an output and its targets, but is the class {loss_fn.__name__}. Write "
            f"loss_fn={_name_in(torch.nn, loss_fn)}({arguments})"
        )
    if not (callable(loss_fn) and accepts(loss_fn, None, None)):
        functions = inspect.getmembers(torch.nn.functional, callable)
        losses = [name for name, function in functions if name.endswith("_loss") and accepts(function, None, None)]
        near = most_similar(loss_fn, losses) if isinstance(loss_fn, str) else None
        raise InvalidResourcesError(
            f"loss_fn must be a function of an output and its targets, but is {describe(loss_fn)}. Write "
            f"loss_fn=torch.nn.functional.{near or 'cross_entropy'} or another function of two arguments"
        )


_ABOUT_CUDA: Final = re.compile(r"\bcuda\b|nvidia driver", re.IGNORECASE)
_NEEDS_WHOLE_NUMBERS: Final = re.compile(r"indices|index tensor|dtype int32/int64 for index|scalar type Long")
"""The messages of embeddings, ``one_hot`` and classification losses for tensors with fractions."""


def hint_for(error: Exception, tensors: Any) -> str:
    """Return what to write instead, or an empty text if the message of PyTorch says enough.

    Args:
        error: The error of the user's model, loss or optimizer.
        tensors: The input, or the pair of the input and the targets if the loss failed.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    text = str(error)
    # Its message lists the devices of CUDA graphs, so it must be checked first.
    if "capturable=True" in text:
        return ". The estimate needs no GPU, but this option does. Omit capturable=True in optimizer for the estimate"
    if _ABOUT_CUDA.search(text):
        return (
            '. The estimate needs no GPU. Remove .cuda(), .to("cuda") and device="cuda" from the model, the batch and '
            "loss_fn, and create tensors in forward(x) with device=x.device"
        )
    if not _NEEDS_WHOLE_NUMBERS.search(text):
        return ""
    for leaf in reversed(tree_leaves(tensors)):  # the targets come last
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return f". It requires whole numbers. Write {_in_batch(tensors, leaf)}"
    return ""


def _in_batch(tensors: Any, wrong: Any) -> str:
    """Return the ``batch`` in which a tensor of whole numbers replaces the tensor ``wrong``."""
    shape = tuple(wrong.shape)
    whole = f"torch.zeros({', '.join(map(str, shape))}, dtype=torch.long)"
    if tensors is wrong:
        return f"batch={whole}"
    if isinstance(tensors, dict):
        name = next((name for name, tensor in tensors.items() if tensor is wrong), None)
        if name is not None:
            return f'"{name}": {whole} in batch'
    return f"{whole} instead of {shape} in batch"


def _optimizers() -> list[str]:
    import torch

    found = inspect.getmembers(torch.optim, inspect.isclass)
    return [name for name, cls in found if issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer]


def _rebuilt(optimizer: Any) -> str:
    """Return code that creates an optimizer with the same class and the options that differ from their defaults."""
    import torch

    cls = type(optimizer)
    parameters = inspect.signature(cls).parameters
    # Only options whose ``repr`` is valid code are repeated. Tensors and functions are not.
    options = [
        f"{name}={value!r}"
        for name, value in optimizer.defaults.items()
        if name in parameters and isinstance(value, int | float | tuple) and value != parameters[name].default
    ]
    return f"{_name_in(torch.optim, cls)}({', '.join(['parameters', *options])})"


def _name_in(module: Any, cls: type) -> str:
    """Return a class's name, after the name of ``module`` if the class can be imported from it."""
    if getattr(module, cls.__name__, None) is cls:
        return f"{module.__name__}.{cls.__name__}"
    return cls.__name__


def accepts(function: Callable[..., Any], *arguments: Any) -> bool:
    """Return whether a function can be called with these arguments, or whether this cannot be determined."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions of extension modules have no signature
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def describe(value: Any) -> str:
    """Return a function's name with its parameters, or the shortened ``repr`` of another value."""
    if inspect.isfunction(value):
        return f"{value.__name__}{inspect.signature(value)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return shorten(value)
