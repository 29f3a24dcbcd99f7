"""The errors that say that a configuration cannot run; any other one is a fault of the call, or of this package."""

from __future__ import annotations

from triton.runtime.errors import OutOfResources, PTXASError

from wavetune.errors import InfeasibleConfigError

try:
    from triton.compiler.errors import CompilationError
except ImportError:  # pragma: no cover (another release of Triton)
    CompilationError = PTXASError

UNUSABLE: tuple[type[Exception], ...] = (InfeasibleConfigError, OutOfResources, PTXASError, CompilationError)
"""What compiling or loading raises when a configuration cannot run on this GPU with this release of Triton. Nothing was
launched: the configuration is passed over, with a line in the log."""
