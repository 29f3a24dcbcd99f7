"""How the operators of this package are made known to torch, as ``torch.ops.wavetune``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "wavetune"
"""Of all operators."""

# The graph of a compiled model must not lay the operands out anew: their strides decide what is launched.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)

torch_library: Any = torch.library  # it has no types
library: Any = torch_library.Library(NAMESPACE, "FRAGMENT")


def define(schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Define an operator.

    Parameters
    ----------
    schema : str
        Its name and signature, as ``torch.library.Library.define`` takes them.
    implementation : callable
        Runs it, on every device: it says itself, by name, what it cannot launch on.
    fake : callable
        Returns results without contents, for tracing.
    """
    name = schema.partition("(")[0]
    library.define(schema, tags=_TAGS)
    library.impl(name, implementation, "CompositeExplicitAutograd")
    torch_library.register_fake(f"{NAMESPACE}::{name}", fake, lib=library)
