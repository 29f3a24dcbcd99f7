"""Settings: environment variables, read once, each with a Python equal.

`SETTINGS` is the one list of them; ``docs/environment.md`` is its table, held together by a test. An empty variable
counts as not set. `configure` wins over the environment.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavetune.core.config import FieldValue, KernelConfig
from wavetune.errors import SettingsError

logger = logging.getLogger("wavetune")
logger.addHandler(logging.NullHandler())

ON_MISS = ("model", "measure", "default", "error")
"""What to do with a problem beyond the measured range."""

MEASURE_IN = ("inline", "background")
"""Where a miss is measured: in the call that missed, or in a thread of its own."""

STORE_NAME = "choices.db"
"""The user's store, a file in the cache folder."""

_LEVELS = ("debug", "info", "warning", "error", "critical")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment and `configure` say; a new object whenever anything changes.

    Parameters
    ----------
    arch : str or None
        GPU to answer for when a call names none.
    models : tuple of Path
        Folders that are searched before the shipped models.
    cache_dir : Path or None
        Folder of the user's store; None if there is no home folder.
    disable : bool
        Whether every answer is the default configuration.
    force_config : KernelConfig or None
        Fields of the configuration that is answered wherever it is legal.
    pinned : Path or None
        Exact table that `wavetune freeze` wrote.
    on_miss : str
        One of `ON_MISS`.
    measure_budget_ms : float
        Time of one live measurement besides compiling, milliseconds.
    measure_top_k : int
        Candidates of a live measurement, the default not counted.
    measure_in : str
        One of `MEASURE_IN`.
    measure_margin : float
        Share by which a candidate must beat the default.
    record : bool
        Whether calls are counted for each key.
    log_level : str or None
        Level of the ``wavetune`` logger.
    lock_dir : Path or None
        Folder of the locks that timing jobs hold; the system's temporary folder if None.
    """

    arch: str | None
    models: tuple[Path, ...]
    cache_dir: Path | None
    disable: bool
    force_config: KernelConfig | None
    pinned: Path | None
    on_miss: str
    measure_budget_ms: float
    measure_top_k: int
    measure_in: str
    measure_margin: float
    record: bool
    log_level: str | None
    lock_dir: Path | None


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Parameters
    ----------
    name : str
        Keyword of `configure` and attribute of `Settings`.
    read : callable
        Turns text or a Python value into the attribute; ValueError or TypeError says what is allowed.
    default : callable
        Makes the value where nothing is set.
    default_text : str
        The default, for people.
    meaning : str
        One sentence, for people.
    """

    name: str
    read: Callable[[Any], Any]
    default: Callable[[], Any]
    default_text: str
    meaning: str

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return f"WAVETUNE_{self.name.upper()}"


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("expected a name")
    return value


def _path(value: Any) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise TypeError("expected a path")
    path = Path(value)
    if "\0" in str(path):
        raise ValueError("expected a path without NUL characters")
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError("expected a path; ~ stands for no home folder here") from None


def _paths(value: Any) -> tuple[Path, ...]:
    if isinstance(value, str):
        value = [part for part in value.split(os.pathsep) if part]
    elif isinstance(value, os.PathLike):
        value = [value]
    if not isinstance(value, Iterable):
        raise TypeError("expected folders")
    return tuple(_path(part) for part in value)


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in _TRUE + _FALSE:
        raise ValueError(f"expected one of {', '.join(_TRUE + _FALSE)}")
    return word in _TRUE


def _one_of(words: tuple[str, ...]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        word = value.strip().lower() if isinstance(value, str) else value
        if word not in words:
            raise ValueError(f"expected one of {', '.join(words)}")
        return str(word)

    return read


def _number(low: float, *, inclusive: bool) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        bounds = f"expected a number {'of at least' if inclusive else 'above'} {low:g}"
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            raise ValueError(bounds) from None
        if not (low <= number if inclusive else low < number) or math.isinf(number):
            raise ValueError(bounds)
        return number

    return read


def _count(value: Any) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not text.isdecimal() or int(text) < 1:
        raise ValueError("expected an integer of at least 1")
    return int(text)


def _config(value: Any) -> KernelConfig:
    if isinstance(value, Mapping):
        return KernelConfig(**value)
    if not isinstance(value, str):
        raise TypeError("expected name=value, separated by commas")
    fields: dict[str, FieldValue] = {}
    for part in value.split(","):
        name, equals, word = (piece.strip() for piece in part.partition("="))
        if not (name and equals and word):
            raise ValueError("expected name=value, separated by commas: block_m=128,block_n=128,...")
        fields[name] = int(word) if word.isdecimal() else word
    return KernelConfig(**fields)


def _default_cache_dir() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a relative path is invalid and to be ignored.
    if os.path.isabs(base):
        return Path(base) / "wavetune"
    try:
        return Path.home() / ".cache" / "wavetune"
    except RuntimeError:
        return None


def _nothing() -> None:
    return None


SETTINGS = (
    Setting("arch", _text, _nothing, "the current GPU", "GPU to answer for when a call names none."),
    Setting("models", _paths, tuple, "none", "Folders with models, searched before the shipped ones."),
    Setting(
        "cache_dir", _path, _default_cache_dir, "`$XDG_CACHE_HOME/wavetune`, else `~/.cache/wavetune`",
        "Folder of the choices that live measurement makes.",
    ),
    Setting("disable", _flag, lambda: False, "off", "Answer every problem with the default configuration."),
    Setting(
        "force_config", _config, _nothing, "none",
        "Answer this configuration wherever it is legal: `block_m=128,block_n=128,...`. "
        "Attention and grouped GEMM: if their model has it.",
    ),
    Setting("pinned", _path, _nothing, "none", "Exact table that `wavetune freeze` wrote."),
    Setting(
        "on_miss", _one_of(ON_MISS), lambda: "model", "`model`",
        "Beyond the measured range: `model`, `measure`, `default` or `error`.",
    ),
    Setting(
        "measure_budget_ms", _number(0.0, inclusive=False), lambda: 50.0, "50",
        "Milliseconds that one live measurement may take besides compiling.",
    ),
    Setting("measure_top_k", _count, lambda: 4, "4", "Candidates that are measured beside the default."),
    Setting(
        "measure_in", _one_of(MEASURE_IN), lambda: "inline", "`inline`",
        "Measure in the call that missed (`inline`), or in a thread (`background`).",
    ),
    Setting(
        "measure_margin", _number(0.0, inclusive=True), lambda: 0.02, "0.02",
        "Share by which a candidate must beat the default to replace it.",
    ),
    Setting("record", _flag, lambda: False, "off", "Count the calls of every key that is not exact."),
    Setting(
        "log_level", _one_of(_LEVELS), _nothing, "what `logging` says",
        "Write wavetune's log from this level on to stderr: `debug`, `info`, `warning`, `error` or `critical`.",
    ),
    Setting("lock_dir", _path, _nothing, "the temporary folder", "Folder of the locks that timing jobs hold."),
)  # fmt: skip
"""Every setting, in the order of the documentation."""

_BY_NAME = {setting.name: setting for setting in SETTINGS}

_configured: dict[str, Any] = {}
_current: Settings | None = None
_when_changed: list[Callable[[], None]] = []


def settings() -> Settings:
    """Return the settings; the environment is read at the first call, and after `wavetune.clear_caches`.

    Raises
    ------
    SettingsError
        If an environment variable has an impossible value; names it.
    """
    return _current if _current is not None else _read()


def configure(**values: Any) -> Settings:
    """Change settings for this process; they win over the environment variables.

    Parameters
    ----------
    **values
        By the names of `Settings`, as text or as Python values. None gives a setting back to the environment.

    Returns
    -------
    Settings
        The new settings. Remembered answers are forgotten, so that the change counts for the next call.

    Raises
    ------
    SettingsError
        If a name is unknown or a value impossible; then nothing changes.
    """
    changed = dict(_configured)
    for name, value in values.items():
        if name not in _BY_NAME:
            raise SettingsError(f"unknown setting {name!r}; known: {', '.join(_BY_NAME)}")
        changed.pop(name, None)
        if value is not None:
            changed[name] = _checked(_BY_NAME[name], value, f"configure({name}=...)")
    _configured.clear()
    _configured.update(changed)
    current = _read()
    for call in _when_changed:
        call()
    return current


def reread() -> None:
    """Read the environment again at the next call of `settings`; what was configured stays."""
    global _current
    _current = None


def when_changed(call: Callable[[], None]) -> None:
    """Have ``call`` called after every `configure`."""
    _when_changed.append(call)


def _read() -> Settings:
    global _current
    values = {}
    for setting in SETTINGS:
        text = os.environ.get(setting.variable)
        if setting.name in _configured:
            values[setting.name] = _configured[setting.name]
        elif text:
            values[setting.name] = _checked(setting, text, setting.variable)
        else:
            values[setting.name] = setting.default()
    current = _current = Settings(**values)
    if current.log_level is not None:
        _show_log(current.log_level)
    return current


def _checked(setting: Setting, value: Any, where: str) -> Any:
    try:
        return setting.read(value)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{where}: {error}, got {value!r}") from None


def _show_log(level: str) -> None:
    logger.setLevel(level.upper())
    has_handler = any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers)
    # A program that set logging up shows the lines its own way.
    if not has_handler and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(levelname)s: %(message)s"))
        logger.addHandler(handler)
