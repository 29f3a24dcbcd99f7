"""Triton's configurations and keys of launches, in this package's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wavetune.core.config import KernelConfig
from wavetune.mapping.kernel_mapping import KernelProblem, short_dtype


@dataclass(frozen=True, eq=False)
class Candidate:
    """A configuration of a kernel.

    Parameters
    ----------
    config : triton.Config
        As the owner of the kernel wrote it.
    identity : KernelConfig
        What it is called in stores and model files: integers and words.
    options : mapping of str to object
        Keyword arguments of the launch; also what mapping functions get.
    """

    config: Any
    identity: KernelConfig
    options: Mapping[str, Any]

    @classmethod
    def of(cls, config: Any) -> Candidate:
        """Describe a ``triton.Config``."""
        options = config.all_kwargs()
        # Every configuration has the usual one; leaving it out keeps identities short, and equal across versions.
        named = {name: _plain(value) for name, value in options.items() if (name, value) != ("num_ctas", 1)}
        return cls(config, KernelConfig(**named), options)


def _plain(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return value if isinstance(value, str) else str(value)


def describe_problem(name: str, key: Mapping[str, Any], arguments: Sequence[Any]) -> tuple[KernelProblem, list[str]]:
    """Describe one launch as a problem of its kernel.

    Parameters
    ----------
    name : str
        Name of the kernel.
    key : mapping of str to object
        The values of the key arguments.
    arguments : sequence
        All arguments; the element types of tensors count.

    Returns
    -------
    problem : KernelProblem
        Positive integers of the key are its sizes; whatever else is in the key goes into its layout.
    dims : list of str
        Names of the sizes.
    """
    sizes = {entry: value for entry, value in key.items() if type(value) is int and value > 0}
    rest = [f"{entry}={_name_of(value)}" for entry, value in key.items() if entry not in sizes]
    dtypes = [short_dtype(argument.dtype) for argument in arguments if hasattr(argument, "dtype")]
    return KernelProblem(name, tuple(sizes.values()), "+".join(dtypes), ",".join(rest)), list(sizes)


def _name_of(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return str(value)
    # An element type says its name; of a tensor or another object only the kind can be the same in the next process.
    return short_dtype(value) if type(value).__name__ == "dtype" else type(value).__name__
