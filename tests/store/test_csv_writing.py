"""Writing measurement files, and tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.errors import MeasurementError
from wavetune.store.csv_io import read_measurements, write_measurements
from wavetune.store.table import MeasurementTable, concatenate

H200 = find_arch("h200")


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz"])
def test_a_table_survives_the_round_trip_exactly(tmp_path: Path, table: MeasurementTable, name: str) -> None:
    """A table survives the round trip exactly."""
    write_measurements(tmp_path / name, table)
    back = read_measurements(tmp_path / name, GEMM, "bf16", H200, exhaustive=True).table
    assert back.configs == table.configs
    for column in ("dims", "config_index", "latency_us", "exhaustive"):
        assert np.array_equal(getattr(back, column), getattr(table, column))


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz"])
def test_the_same_table_gives_the_same_bytes(
    tmp_path: Path, table: MeasurementTable, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same table gives the same bytes."""
    write_measurements(tmp_path / name, table)
    first = (tmp_path / name).read_bytes()
    monkeypatch.setattr("time.time", lambda: 4e9)
    write_measurements(tmp_path / name, table)
    assert (tmp_path / name).read_bytes() == first


def test_extra_columns_are_written_and_ignored_by_readers(tmp_path: Path, table: MeasurementTable) -> None:
    """Extra columns are written and ignored by readers."""
    write_measurements(tmp_path / "a.csv", table, extra={"set": ["a", "b,c", "d", "e", "f"]})
    assert '"b,c"' in (tmp_path / "a.csv").read_text()
    assert len(read_measurements(tmp_path / "a.csv", GEMM, "bf16", H200, exhaustive=True).table) == 5


@pytest.mark.parametrize("wrong", [{"dtype": "fp16"}, {"layout": "kn"}])
def test_a_written_file_says_what_it_is_of(tmp_path: Path, table: MeasurementTable, wrong: dict[str, str]) -> None:
    """It cannot be read as another dtype or layout."""
    write_measurements(tmp_path / "a.csv", replace(table, **wrong))
    name, value = next(iter(wrong.items()))
    with pytest.raises(MeasurementError, match=rf"a\.csv:2: {name} is {value}, asked for was"):
        read_measurements(tmp_path / "a.csv", GEMM, "bf16", H200, exhaustive=True)


@pytest.mark.parametrize("extra", [{"set": ["a"]}, {"m": ["a"] * 5}, {"latency_us": ["a"] * 5}])
def test_extra_columns_must_fit(tmp_path: Path, table: MeasurementTable, extra: dict[str, list[str]]) -> None:
    """Extra columns must fit."""
    with pytest.raises(MeasurementError, match=next(iter(extra))):
        write_measurements(tmp_path / "a.csv", table, extra=extra)


def test_a_place_that_cannot_be_written_is_named_and_left_clean(tmp_path: Path, table: MeasurementTable) -> None:
    """A place that cannot be written is named and left clean."""
    with pytest.raises(MeasurementError, match=r"none/a\.csv: cannot write"):
        write_measurements(tmp_path / "none" / "a.csv", table)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(MeasurementError, match=r"folder\.csv: cannot write"):
        write_measurements(tmp_path / "folder.csv", table)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.csv"]


def test_a_latency_matrix_has_medians_and_gaps(table: MeasurementTable) -> None:
    """A latency matrix has medians and gaps."""
    twice = concatenate([table, table.select(np.array([0])), replace(table, latency_us=table.latency_us * 3)])
    problems, latency_us = twice.latency_matrix()
    assert problems.tolist() == [[1, 6144, 4096], [16, 4096, 4096], [300, 4096, 4096]]
    assert np.isnan(latency_us[0, 0])
    assert latency_us[0, 1] == 22.0 * 2
    assert latency_us[2, 1] == 30.125


def test_joining_tables_renumbers_their_configurations(table: MeasurementTable) -> None:
    """Joining tables renumbers their configurations."""
    first = replace(table.select(np.array([1])), configs=table.configs[:1])
    second = replace(table.select(np.array([0])), configs=table.configs[1:], config_index=np.array([0]))
    joined = concatenate([second, first])
    assert joined.configs == table.configs
    assert [joined.configs[index] for index in joined.config_index] == [table.configs[1], table.configs[0]]


@pytest.mark.parametrize("change", [{"dtype": "fp16"}, {"layout": "kn"}])
def test_tables_of_different_kernels_do_not_join(table: MeasurementTable, change: dict[str, str]) -> None:
    """Tables of different kernels do not join."""
    with pytest.raises(MeasurementError, match=next(iter(change))):
        concatenate([table, replace(table, **change)])


def test_tables_of_different_builds_do_not_join(table: MeasurementTable) -> None:
    """Tables of different builds do not join."""
    other = replace(table, configs=(replace(table.configs[0], num_regs=200), table.configs[1]))
    with pytest.raises(MeasurementError, match="num_regs=200"):
        concatenate([table, other])
