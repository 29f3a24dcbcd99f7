"""A GPU that launches nothing, for tests of what launchers do around a launch."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from wavetune.launch.gpu import LaunchGpu


@dataclass(frozen=True)
class FakeGpu(LaunchGpu):
    """A GPU that is there, and may be capturing."""

    capturing: bool = False

    def activate(self) -> contextlib.AbstractContextManager[object]:
        """Do nothing."""
        return contextlib.nullcontext()

    def is_capturing(self) -> bool:
        """Return what the test wants."""
        return self.capturing
