"""Launch configurations: named integers (and one schedule word), split into macro and micro fields.

*Macro* fields change how the problem is mapped to CTAs and loop trips; *micro* fields do not.
A `KernelSpec` says which is which for one kernel family, so user-defined kernels bring their own fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from wavetune.errors import ConfigError

FieldValue = int | str

MAX_REMEMBERED = 8192
"""Configurations whose parts are remembered: choices ask for the same ones again and again."""


class KernelConfig(Mapping[str, FieldValue]):
    """An immutable, hashable set of named launch parameters.

    Fields read as attributes (``config.block_m``) and as items (``config["block_m"]``), and unpack with
    ``**config``. Two configurations are equal if their fields are, whatever the order.

    Parameters
    ----------
    **fields : int or str
        Integers, except for categorical words such as ``schedule``.

    Raises
    ------
    ConfigError
        If a value is neither an int nor a str.
    """

    __slots__ = ("_fields", "_hash")
    _fields: dict[str, FieldValue]
    _hash: int

    def __init__(self, **fields: FieldValue) -> None:
        for name, value in fields.items():
            if isinstance(value, bool) or not isinstance(value, int | str):
                raise ConfigError(f"config field {name} must be an int or a str, got {value!r}")
        object.__setattr__(self, "_fields", fields)
        object.__setattr__(self, "_hash", hash(frozenset(fields.items())))

    def __getitem__(self, name: str) -> FieldValue:
        return self._fields[name]

    def __getattr__(self, name: str) -> FieldValue:
        # Only called when normal lookup fails; never for slots or methods.
        if not name.startswith("_"):
            try:
                return self._fields[name]
            except KeyError:
                pass
        raise AttributeError(f"config has no field {name!r}; it has {', '.join(self._fields)}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("KernelConfig is immutable; use config.replace(...)")

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, KernelConfig):
            return self._fields == other._fields
        return NotImplemented

    def __repr__(self) -> str:
        return f"KernelConfig({', '.join(f'{name}={value!r}' for name, value in self._fields.items())})"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (dict(self._fields),))

    def replace(self, **changes: FieldValue) -> KernelConfig:
        """Return a copy with some fields changed."""
        return KernelConfig(**{**self._fields, **changes})

    def select(self, names: tuple[str, ...]) -> KernelConfig:
        """Return the configuration restricted to ``names``, in that order."""
        return _selected(self, names)


@lru_cache(maxsize=MAX_REMEMBERED)
def _selected(config: KernelConfig, names: tuple[str, ...]) -> KernelConfig:
    return KernelConfig(**{name: config[name] for name in names})


def _rebuild(fields: dict[str, FieldValue]) -> KernelConfig:
    return KernelConfig(**fields)


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """The fields of one kernel family.

    Parameters
    ----------
    name : str
        Kernel family, as in ``gemm-bf16.json``.
    dims : tuple of str
        Names of the problem sizes, in table-key order.
    macro, micro : tuple of str
        Field names. Macro fields change the mapping, micro fields do not; a test holds this line.
    defaults : mapping of str to int or str
        Values of fields that may be left out (older measurement files).
    words : mapping of str to tuple of str
        Categorical fields and the words they take. Every other field is a positive integer.
    atomics : mapping of str to tuple
        Values of fields with which a kernel adds up by atomics, so that two runs differ. None of the kernels shipped:
        split-k adds through a workspace, in order.
    zero_dims : tuple of str
        Problem sizes that may be 0 where there is something to compute; others are then empty problems.
    """

    name: str
    dims: tuple[str, ...]
    macro: tuple[str, ...]
    micro: tuple[str, ...]
    defaults: Mapping[str, FieldValue] = field(default_factory=dict)
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    atomics: Mapping[str, tuple[FieldValue, ...]] = field(default_factory=dict)
    zero_dims: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """All field names, macro first: the order in files and tables."""
        return self.macro + self.micro

    def config(self, fields: Mapping[str, FieldValue]) -> KernelConfig:
        """Build a complete, checked configuration in field order.

        Raises
        ------
        ConfigError
            If a field is unknown, missing without a default, or has an impossible value.
        """
        unknown = sorted(set(fields) - set(self.fields))
        if unknown:
            raise ConfigError(f"unknown config field {unknown[0]!r} for {self.name}; known: {', '.join(self.fields)}")
        values: dict[str, FieldValue] = {}
        for name in self.fields:
            if name in fields:
                value = fields[name]
            elif name in self.defaults:
                value = self.defaults[name]
            else:
                raise ConfigError(f"config field {name!r} is missing for {self.name}")
            if name in self.words:
                if value not in self.words[name]:
                    raise ConfigError(f"config field {name} must be one of {self.words[name]}, got {value!r}")
            elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"config field {name} must be a positive integer, got {value!r}")
            values[name] = value
        return KernelConfig(**values)

    def macro_of(self, config: KernelConfig) -> KernelConfig:
        """Return the macro part of ``config``."""
        return config.select(self.macro)


GEMM = KernelSpec(
    name="gemm",
    dims=("m", "n", "k"),
    macro=("block_m", "block_n", "block_k", "split_k", "schedule"),
    micro=("group_m", "num_warps", "num_stages", "load", "epilogue_split"),
    defaults=MappingProxyType({"split_k": 1, "schedule": "tile", "load": "pointer", "epilogue_split": 1}),
    words=MappingProxyType(
        {"schedule": ("tile", "persistent", "split_k", "warp_specialized"), "load": ("pointer", "tma")}
    ),
)

WALKING_SCHEDULES = frozenset({"persistent", "warp_specialized"})
"""Schedules of GEMM kernels that launch a CTA for each resident slot, which walks over tiles."""

ATTENTION = KernelSpec(
    name="attention",
    dims=("batch", "q_len", "kv_len", "spread", "heads", "kv_heads", "is_causal", "window"),
    macro=("block_m", "block_n", "order"),
    micro=("masking", "num_warps", "num_stages", "max_registers"),
    defaults=MappingProxyType({"max_registers": 255}),
    words=MappingProxyType({"order": ("in_order", "longest_first"), "masking": ("separate", "edges")}),
    zero_dims=("spread", "is_causal", "window"),
)

ATTENTION_DECODE = KernelSpec(
    name="attention_decode",
    dims=("batch", "kv_len", "spread", "heads", "kv_heads", "page_size", "window"),
    macro=("block_n", "splits"),
    micro=("num_warps", "num_stages"),
    defaults=MappingProxyType({"splits": 1}),
    zero_dims=("spread", "window"),
)

GROUPED_GEMM = KernelSpec(
    name="grouped_gemm",
    dims=("experts", "tokens", "active", "largest", "n", "k"),
    macro=("block_m", "block_n", "block_k", "schedule"),
    micro=("group_m", "num_warps", "num_stages", "load"),
    defaults=MappingProxyType({"schedule": "tile", "group_m": 8, "load": "tma"}),
    words=MappingProxyType({"schedule": ("tile", "persistent"), "load": ("pointer", "tma")}),
)

NVFP4_SCALES = KernelSpec(
    name="nvfp4_scales",
    dims=("blocks",),
    macro=("blocks_per_cta",),
    micro=("num_warps", "num_stages"),
    defaults=MappingProxyType({"num_stages": 1}),
)

KERNEL_SPECS: Mapping[str, KernelSpec] = MappingProxyType(
    {spec.name: spec for spec in (GEMM, ATTENTION, ATTENTION_DECODE, GROUPED_GEMM, NVFP4_SCALES)}
)


def find_kernel_spec(name: str) -> KernelSpec:
    """Resolve a kernel family by name.

    Raises
    ------
    ConfigError
        If the family is unknown.
    """
    try:
        return KERNEL_SPECS[name]
    except (KeyError, TypeError):
        raise ConfigError(f"unknown kernel {name!r}; known: {', '.join(KERNEL_SPECS)}") from None
