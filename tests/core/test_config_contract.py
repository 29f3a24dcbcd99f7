"""What a configuration is."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetune.core.config import GEMM, KernelConfig, KernelSpec, find_kernel_spec
from wavetune.errors import ConfigError

FIELDS = {"block_m": 64, "block_n": 128, "block_k": 32, "group_m": 8, "num_warps": 4, "num_stages": 3}

configs = st.dictionaries(
    st.sampled_from(["block_m", "block_n", "num_warps", "schedule"]), st.integers() | st.text(max_size=3), min_size=1
)


@given(fields=configs)
def test_equality_and_hash_ignore_the_order_of_fields(fields: dict[str, int | str]) -> None:
    """Equality and hash ignore the order of fields."""
    backwards = dict(reversed(list(fields.items())))
    assert KernelConfig(**fields) == KernelConfig(**backwards)
    assert hash(KernelConfig(**fields)) == hash(KernelConfig(**backwards))


@given(fields=configs)
def test_a_config_survives_pickle_and_copy(fields: dict[str, int | str]) -> None:
    """A config survives pickle and copy."""
    config = KernelConfig(**fields)
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config
    assert dict(config) == fields


@pytest.mark.parametrize("value", [True, 1.0, None, [1]])
def test_fields_are_ints_and_words_only(value: object) -> None:
    """Fields are ints and words only."""
    with pytest.raises(ConfigError, match="block_m"):
        KernelConfig(block_m=value)  # type: ignore[arg-type]


def test_a_config_cannot_be_changed_but_replaced() -> None:
    """A config cannot be changed but replaced."""
    config = GEMM.config(FIELDS)
    with pytest.raises(AttributeError, match="immutable"):
        config.block_m = 3  # type: ignore[misc]
    assert config.replace(block_m=16).block_m == 16
    assert config.block_m == 64


def test_an_unknown_field_names_the_known_ones() -> None:
    """An unknown field names the known ones."""
    with pytest.raises(AttributeError, match=r"block_x.*block_m"):
        _ = GEMM.config(FIELDS).block_x


def test_fields_with_defaults_may_be_left_out() -> None:
    """Fields with defaults may be left out."""
    config = GEMM.config(FIELDS)
    assert tuple(config) == GEMM.fields
    assert (config.split_k, config.schedule, config.load, config.epilogue_split) == (1, "tile", "pointer", 1)


@pytest.mark.parametrize("name", list(FIELDS))
def test_fields_without_defaults_may_not(name: str) -> None:
    """Fields without defaults may not."""
    with pytest.raises(ConfigError, match=f"{name!r} is missing"):
        GEMM.config({key: value for key, value in FIELDS.items() if key != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [("block_m", 0), ("split_k", -1), ("num_warps", "4"), ("schedule", "tiles"), ("load", 1), ("x", 1)],
)
def test_impossible_values_are_refused_by_name(name: str, value: int | str) -> None:
    """Impossible values are refused by name."""
    with pytest.raises(ConfigError, match=name):
        GEMM.config({**FIELDS, name: value})


def test_macro_and_micro_fields_partition_a_config() -> None:
    """Macro and micro fields partition a config."""
    config = GEMM.config(FIELDS)
    assert set(GEMM.macro).isdisjoint(GEMM.micro)
    assert GEMM.macro_of(config) == GEMM.macro_of(config.replace(num_warps=8, num_stages=5, group_m=1, load="tma"))
    assert GEMM.macro_of(config) != GEMM.macro_of(config.replace(block_k=64))


def test_a_users_kernel_brings_its_own_fields() -> None:
    """A user's kernel brings its own fields."""
    spec = KernelSpec("softmax", ("rows", "columns"), ("block_rows",), ("num_warps",))
    assert spec.config({"num_warps": 4, "block_rows": 2}).block_rows == 2


def test_kernels_are_found_by_exact_name() -> None:
    """Kernels are found by exact name."""
    assert find_kernel_spec("gemm") is GEMM
    for name in ("gem", "gemm ", "GEMM", None, []):
        with pytest.raises(ConfigError, match="unknown kernel"):
            find_kernel_spec(name)  # type: ignore[arg-type]
