"""`patch_linear`: the linear layers of a model, launched in the configurations that the runtime chooses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from wavetune.errors import OperandTypeError
from wavetune.kernels.call import IS_INTERPRETED
from wavetune.launch.checks import SUPPORTED_DTYPES, check_names
from wavetune.launch.matmul import matmul

Linear = torch.nn.Linear

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class TunedLinear(Linear):
    """A `torch.nn.Linear` whose product is launched by `wavetune.matmul`.

    Made by `patch_linear` out of a plain one, never built: parameters, hooks, buffers and the state dict are those of
    the layer it was. Input that the kernels do not take (another dtype, another device, a subclass) goes to torch.
    """

    numerics: str = "any"

    def forward(self, input: Any) -> Any:
        """Compute ``input @ weight.T + bias``."""
        weight = self.weight
        # Whatever else there is (fp32 input in a region of autocast, a sharded weight, a CPU) is torch's own business.
        if (
            input.dtype == weight.dtype
            and weight.dtype in SUPPORTED_DTYPES
            and (IS_INTERPRETED or (input.is_cuda and weight.is_cuda))
            and type(weight) in _PLAIN
            and type(input) in _PLAIN
        ):
            return matmul(input, weight.t(), self.bias, numerics=self.numerics)
        return torch.nn.functional.linear(input, weight, self.bias)


class LinearPatch:
    """What `patch_linear` did, and how to undo it; a context manager that undoes it at the end.

    Parameters
    ----------
    layers : list of Linear
        The layers that were changed.
    skipped : Counter of str
        How many layers were left as they were, by reason.
    """

    def __init__(self, layers: list[Any], skipped: Counter[str]) -> None:
        self._layers = layers
        self.count = len(layers)
        self.skipped = skipped

    def undo(self) -> None:
        """Give every layer back to torch; a second time, nothing happens."""
        for layer in self._layers:
            if type(layer) is TunedLinear:
                _become(layer, Linear)
                layer.__dict__.pop("numerics", None)
        self._layers = []

    def __enter__(self) -> LinearPatch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        skipped = ", ".join(f"{count} {reason}" for reason, count in sorted(self.skipped.items()))
        return f"<{self.count} linear layers patched{'; left alone: ' + skipped if skipped else ''}>"


def patch_linear(model: Any, *, numerics: str = "any") -> LinearPatch:
    """Let `wavetune.matmul` compute the linear layers of a model, in place.

    Parameters
    ----------
    model : torch.nn.Module
        Layers of exactly `torch.nn.Linear`, of bf16 or fp16, are changed; the model itself may be one. Those that a
        library has replaced by a class of its own (quantized, parametrized, sharded) are left alone, and so are other
        dtypes. Compile the model after patching it.
    numerics : {"any", "deterministic", "batch_invariant"}, default="any"
        As in `wavetune.matmul`.

    Returns
    -------
    LinearPatch
        Its ``undo()`` gives the layers back; ``count`` and ``skipped`` say what was done.

    Raises
    ------
    OperandTypeError
        If ``model`` is not a module, or ``numerics`` unknown.
    """
    check_names("none", numerics)
    if not isinstance(model, torch.nn.Module):
        raise OperandTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    layers: list[Any] = []
    skipped: Counter[str] = Counter()
    linear_layers: list[Any] = [module for module in model.modules() if isinstance(module, Linear)]
    for module in linear_layers:
        if type(module) is not Linear:
            skipped[f"of class {type(module).__name__}"] += 1
        elif type(module.weight) is not torch.nn.Parameter:
            skipped[f"with a weight of class {type(module.weight).__name__}"] += 1
        elif module.weight.dtype not in SUPPORTED_DTYPES:
            skipped[f"of {module.weight.dtype}"] += 1
        else:
            _become(module, TunedLinear)
            module.__dict__["numerics"] = numerics
            layers.append(module)
    return LinearPatch(layers, skipped)


def _become(layer: Any, kind: type[Linear]) -> None:
    layer.__class__ = kind
