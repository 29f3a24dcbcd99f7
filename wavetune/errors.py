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


class WorkloadError(WavetuneError, ValueError):
    """A workload or a log cannot be read, or holds problems that nothing can compute."""


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


class OperandError(WavetuneError, RuntimeError):
    """A tensor given to a launcher has a rank, shape, dtype, device or memory that it cannot use.

    A `RuntimeError`, as torch raises for the same mistakes.
    """


class OperandTypeError(WavetuneError, TypeError):
    """An argument of a launcher is not a tensor, or not a name, where one is needed."""


class CaptureError(WavetuneError, RuntimeError):
    """A CUDA graph is being captured and no kernel that could run is loaded: compiling one is not allowed then."""


class MappingError(WavetuneError, ValueError):
    """A function that maps a kernel's problem to grid and loop fails, or returns something impossible."""


class ReportError(WavetuneError, RuntimeError):
    """A report cannot be made: for lack of the extra ``report``, of a folder to write to, or of a picture to draw."""


class SettingsError(WavetuneError, ValueError):
    """A setting is unknown, or an environment variable or keyword has an impossible value."""


class MissError(WavetuneError, LookupError):
    """A problem is beyond what the tables cover, and the miss policy is ``error``."""


class NoMeasurerError(WavetuneError, RuntimeError):
    """The miss policy is ``measure``, and nothing that can measure was registered."""
