"""What must be put right around every timed launch: arguments that a kernel adds to or overwrites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wavetune.launch.autotune.candidate import Candidate
from wavetune.launch.autotune.stopwatch import Lap

Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TuningHooks:
    """What happens around the launches of a tuning run, with the words and the meaning of ``triton.autotune``.

    Parameters
    ----------
    reset_to_zero, restore_value : sequence of str
        Arguments that are zeroed, or given their values from before the tuning, before every launch and after the
        last. None is passed over.
    pre_hook : callable, optional
        Called with all arguments before every launch instead of that, and with ``reset_only=True`` at the end.
    post_hook : callable, optional
        Called with all arguments and ``exception=None`` after every launch.
    """

    reset_to_zero: Sequence[str] = ()
    restore_value: Sequence[str] = ()
    pre_hook: Callable[..., object] | None = None
    post_hook: Callable[..., object] | None = None

    def open(self, arguments: Arguments) -> TuningArguments:
        """Keep what has to be restored; takes as much memory as those arguments."""
        saved = {}
        if self.pre_hook is None:
            saved = {name: arguments[name].clone() for name in self._present(self.restore_value, arguments)}
        return TuningArguments(self, arguments, saved)

    @staticmethod
    def _present(names: Sequence[str], arguments: Arguments) -> list[str]:
        return [name for name in names if arguments.get(name) is not None]


@dataclass(frozen=True, slots=True)
class TuningArguments:
    """The arguments of one launch while it is being tuned.

    Parameters
    ----------
    hooks : TuningHooks
        What to do.
    arguments : mapping of str to object
        Everything that was passed, by name.
    saved : mapping of str to Tensor
        Copies of what is restored.
    """

    hooks: TuningHooks
    arguments: Arguments
    saved: Mapping[str, Any] = field(default_factory=dict)

    def lap(self, candidate: Candidate, launch: Callable[[], object]) -> Lap:
        """Return a timed launch of a candidate."""
        return Lap(launch, lambda: self.before(candidate), lambda: self.after(candidate))

    def before(self, candidate: Candidate) -> None:
        """Bring the arguments into their first state, then call the hooks."""
        everything = {**self.arguments, **candidate.options}
        if self.hooks.pre_hook is not None:
            self.hooks.pre_hook(everything)
        else:
            self._put_right()
        if candidate.config.pre_hook is not None:
            candidate.config.pre_hook(everything)

    def after(self, candidate: Candidate) -> None:
        """Call the hook that follows a launch."""
        if self.hooks.post_hook is not None:
            self.hooks.post_hook({**self.arguments, **candidate.options}, exception=None)

    def close(self, candidate: Candidate) -> None:
        """Leave the arguments as the caller's own launch must find them."""
        if self.hooks.pre_hook is not None:
            self.hooks.pre_hook({**self.arguments, **candidate.options}, reset_only=True)
        else:
            self._put_right()

    def _put_right(self) -> None:
        for name in self.hooks._present(self.hooks.reset_to_zero, self.arguments):
            self.arguments[name].zero_()
        for name, value in self.saved.items():
            self.arguments[name].copy_(value)
