"""Everything that is known about one kernel, dtype and layout on one device, from all files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import ModelFileError, WavetuneError
from wavetune.mapping.legality import TMA_ALIGNMENT, refusal
from wavetune.mapping.numerics import ReductionOrder, reduction_order
from wavetune.runtime.device import Device
from wavetune.runtime.learning import Learner
from wavetune.runtime.locate import all_model_files, model_file_name, model_folders
from wavetune.runtime.model_file import ModelFile
from wavetune.runtime.settings import STORE_NAME, Settings
from wavetune.runtime.sources import check_triton, find_model, warn_once

if TYPE_CHECKING:
    from wavetune.runtime.measurer import MeasuredChoice
    from wavetune.runtime.pinned import PinnedTable
    from wavetune.runtime.user_store import StoredChoice, UserStore


class KnownChoice(NamedTuple):
    """A measured or pinned answer.

    Parameters
    ----------
    config : KernelConfig
        Legal for its problem.
    latency_us : float
        Measured or pinned latency, microseconds; NaN if nobody knows it.
    table : str
        File that it comes from.
    is_measured : bool, default=True
        Whether the latency was measured.
    """

    config: KernelConfig
    latency_us: float
    table: str
    is_measured: bool = True


_Key = tuple[tuple[int, int, int], int]
"""Sizes and alignment class."""


class Tables:
    """What the files say.

    Parameters
    ----------
    kernel, dtype, layout : str
        The kernel family.
    device : Device
        Where answers are launched.
    settings : Settings
        Which files.
    learner : Learner
        Measures misses.
    changed : callable
        Called after something was learned: remembered answers are stale then.

    Attributes
    ----------
    model : ModelFile or None
        The first one that is whole.
    known : dict of (dims, alignment) to KnownChoice
        Exact answers: the pinned table's, then the store's, then the model's.
    aligned : dict of dims to KernelConfig
        Those at full alignment, for the hot path.
    default : KernelConfig or None
        The pinned table's default.
    pinned_orders : dict of (n, k, aligned) to tuple
        In which order a pinned, batch-invariant table sums each of its layers.
    pinned_path : str
        Of the pinned table; empty if there is none.
    missing : str
        Which files were sought and refused; for errors.
    """

    def __init__(
        self,
        kernel: str,
        dtype: str,
        layout: str,
        device: Device,
        settings: Settings,
        learner: Learner,
        changed: Callable[[], None],
    ) -> None:
        self.learner = learner
        self.model: ModelFile | None = None
        self.known: dict[_Key, KnownChoice] = {}
        self.default: KernelConfig | None = None
        self.pinned_orders: dict[tuple[int, int, bool], ReductionOrder] = {}
        self.pinned_path = ""
        self._device = device
        self.changed = changed
        self._settings = settings
        name = (kernel, dtype, layout)
        self.model, refused = find_model(*name, device.arch.name)
        self.missing = "" if self.model is not None else _missing_model(name, device.arch.name, refused)
        if self.model is not None and device.num_sms == self.model.num_sms:
            for (m, n, k), entry in self.model.exact.items():
                config = self.model.forms[entry.config_index].config
                self.known[(m, n, k), TMA_ALIGNMENT] = KnownChoice(config, entry.latency_us, self.model.path)
        self._add_stored(name, settings)
        self._add_pinned(name, settings)
        self.aligned: dict[tuple[int, int, int], KernelConfig] = {
            dims: choice.config for (dims, alignment), choice in self.known.items() if alignment == TMA_ALIGNMENT
        }

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to answer from."""
        return self.model is None and not self.known and self.default is None

    def learn(self, problem: GemmProblem, choice: MeasuredChoice) -> None:
        """Take a measured answer in, and keep it for the next process."""
        arch, num_sms = self._device.arch.name, self._device.num_sms
        store = open_store(self._settings)
        store.save(problem, choice, arch=arch, num_sms=num_sms)
        place = str(store.path or "")
        self.known[problem.dims, problem.alignment] = KnownChoice(choice.config, choice.latency_us, place)
        if problem.alignment == TMA_ALIGNMENT:
            self.aligned[problem.dims] = choice.config
        self.changed()

    def _add_stored(self, name: tuple[str, str, str], settings: Settings) -> None:
        path = str(store_path(settings) or "")
        for (dims, alignment), stored in load_stored(name, self._device, settings).items():
            problem = _problem(dims, alignment, *name[1:])
            reason = "not a problem" if problem is None else self._refusal(problem, stored.config)
            if problem is None or reason is not None:
                warn_once(f"{path}: field config: not legal for {dims}, alignment {alignment}: {reason}; skipped")
                continue
            self.known[problem.dims, alignment] = KnownChoice(stored.config, stored.latency_us, path)

    def _add_pinned(self, name: tuple[str, str, str], settings: Settings) -> None:
        table = find_pinned(settings, self._device)
        if table is None:
            return
        self.pinned_path = table.path
        self.default = table.defaults.get(name)
        is_invariant = table.numerics == "batch_invariant"
        for problem, (config, latency_us) in table.entries.items():
            if (problem.kernel, problem.dtype, problem.layout) != name:
                continue
            self.known[problem.dims, problem.alignment] = KnownChoice(
                config, latency_us, table.path, is_measured=problem not in table.predicted
            )
            order = reduction_order(config, self._device.arch) if is_invariant else None
            if order is not None:
                self.pinned_orders.setdefault((problem.n, problem.k, problem.alignment >= TMA_ALIGNMENT), order)

    def _refusal(self, problem: GemmProblem, config: KernelConfig) -> str | None:
        return refusal(problem, config, self._device.arch)


def store_path(settings: Settings) -> Path | None:
    """Return where the user's store is; None without a cache folder."""
    return None if settings.cache_dir is None else settings.cache_dir / STORE_NAME


def open_store(settings: Settings) -> UserStore:
    """Return the user's store of a cache folder; one object for each, which warns once."""
    from wavetune.runtime.user_store import UserStore

    path = store_path(settings)
    store = _stores.get(path)
    return store if store is not None else _stores.setdefault(path, UserStore(path))


def load_stored(
    name: tuple[str, str, str], device: Device, settings: Settings
) -> Mapping[tuple[tuple[int, ...], int], StoredChoice]:
    """Return the stored choices of a (kernel, dtype, layout) on a device, by sizes and alignment."""
    path = store_path(settings)
    # Most users have no store: then SQLite is not loaded either. A store that was opened may hold what is not on disk.
    if path not in _stores and (path is None or not os.path.exists(path)):
        return {}
    kernel, dtype, layout = name
    return open_store(settings).load(
        arch=device.arch.name, num_sms=device.num_sms, kernel=kernel, dtype=dtype, layout=layout
    )


def find_pinned(settings: Settings, device: Device) -> PinnedTable | None:
    """Return the pinned table, if there is one for this device; another one is named in one warning."""
    if settings.pinned is None:
        return None
    from wavetune.runtime.pinned import read_pinned

    try:
        table = read_pinned(settings.pinned)
        check_triton(table.path, table.provenance)
        for field, value, expected in (
            ("arch", table.arch, device.arch.name),
            ("num_sms", table.num_sms, device.num_sms),
        ):
            if value != expected:
                raise ModelFileError(f"{table.path}: field {field}: {value!r}, but this device has {expected!r}")
    except ModelFileError as error:
        warn_once(f"{error}; nothing is pinned")
        return None
    return table


def forget_stores() -> None:
    """Open the user's stores afresh next time."""
    _stores.clear()


_stores: dict[object, UserStore] = {}


def _missing_model(name: tuple[str, str, str], arch: str, refused: tuple[str, ...]) -> str:
    place = f"{arch}/{model_file_name(*name)}"
    if refused:
        return f"no model {place} that can be used; refused: {'; '.join(refused)}"
    found = ", ".join(f"{path.parent.name}/{path.name}" for path in all_model_files()) or "none"
    folders = ", ".join(map(str, model_folders())) or "none"
    return (
        f"no model {place}; found: {found}; searched: {folders}. "
        "Make one with `wavetune calibrate` or `wavetune fit`, or add its folder to WAVETUNE_MODELS"
    )


def _problem(dims: tuple[int, ...], alignment: int, dtype: str, layout: str) -> GemmProblem | None:
    try:
        m, n, k = dims
        return GemmProblem(m, n, k, dtype, layout, alignment)
    except (WavetuneError, ValueError):
        return None
