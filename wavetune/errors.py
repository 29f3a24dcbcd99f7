"""One exception class per kind of mistake.

Every class is a `WavetuneError` and also the built-in exception that a caller would expect,
so ``except ValueError`` keeps working. Messages say what is wrong, the offending value, and what to do.
"""

from __future__ import annotations


class WavetuneError(Exception):
    """Base of every error that wavetune raises on purpose."""


class ProblemError(WavetuneError, ValueError):
    """A problem size or option has a value that no kernel can compute."""


class ProblemTypeError(WavetuneError, TypeError):
    """A problem size or option has the wrong Python type."""


class ConfigError(WavetuneError, ValueError):
    """A kernel configuration is malformed, or is unknown where a known one is needed."""


class ArchError(WavetuneError, ValueError):
    """No architecture was named, or the name is not a known GPU."""


class InfeasibleConfigError(WavetuneError, ValueError):
    """A configuration cannot be resident on the GPU: not even one CTA fits on an SM."""


class MeasurementError(WavetuneError, ValueError):
    """A measurement file cannot be read, or holds rows that cannot be true."""


class FitError(WavetuneError, ValueError):
    """The measurements are not enough to fit a model."""


class ModelFileError(WavetuneError, ValueError):
    """A model file is damaged, from a newer schema, or inconsistent."""


class NoModelError(WavetuneError, LookupError):
    """No model file covers the kernel, dtype and architecture asked for."""


class StoreError(WavetuneError, OSError):
    """The measurement store cannot be opened, read or written."""


class RunnerError(WavetuneError, RuntimeError):
    """A runner cannot measure: no GPU, a missing package, or a device in use."""
