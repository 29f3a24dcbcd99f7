"""The measurement store."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import wavetune.store.connection as connection_module
from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import MeasurementError, StoreError
from wavetune.store.csv_io import read_measurements
from wavetune.store.database import MeasurementStore
from wavetune.store.record import CompiledConfig, Measurement, Point, Status
from wavetune.store.table import MeasurementTable

ENVIRONMENT = {"gpu": "NVIDIA H200", "driver": "580.1", "kernel_sha256": "ab"}
CONFIG = GEMM.config({"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3})
COMPILED = CompiledConfig(CONFIG, 69, 0, 49152)


def success(m: int, latency_us: float = 20.0, stratum: str = "loop", **more: object) -> Measurement:
    """Return a measurement that went well."""
    problem = GemmProblem(m, 4096, 4096)
    return replace(Measurement(problem, CONFIG, Status.OK, latency_us, 0.1, 5, "graph", stratum), **more)


def failure(m: int, status: Status = Status.LAUNCH_ERROR, stratum: str = "loop") -> Measurement:
    """Return a measurement that failed."""
    return Measurement(GemmProblem(m, 4096, 4096), CONFIG, status, stratum=stratum, detail="illegal address")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MeasurementStore]:
    """Open a new store that knows one configuration."""
    with MeasurementStore(tmp_path / "s.db", ENVIRONMENT) as store:
        store.record_compiled([COMPILED])
        yield store


def test_what_was_recorded_is_there_after_reopening(store: MeasurementStore) -> None:
    """What was recorded is there after reopening."""
    batch = [success(1), failure(2, Status.WRONG_RESULT), success(3, stratum="layer")]
    store.record(batch)
    store.close()
    with MeasurementStore(store.path, ENVIRONMENT) as again:
        assert again.measurements() == batch
        assert again.measurements(failed=True) == batch[1:2]
        assert again.measurements(failed=False) == [batch[0], batch[2]]
        assert again.compiled_configs() == (COMPILED,)
        assert again.environment() == ENVIRONMENT
        assert again.done_points() == {Point(entry.problem, entry.config, entry.stratum) for entry in batch}


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_failures_that_may_pass_are_tried_again(store: MeasurementStore, status: Status) -> None:
    """What a busy host or a full memory prevented is measured on resuming; what compiles wrongly is not."""
    store.record([failure(1, status)])
    assert bool(store.done_points()) == (status not in (Status.LAUNCH_ERROR, Status.OUT_OF_MEMORY))


def test_a_point_recorded_again_is_not_there_twice(store: MeasurementStore) -> None:
    """A point recorded again is not there twice."""
    store.record([success(1, 20.0), success(1, 19.0, stratum="layer")])
    store.record([success(1, 21.0)])
    assert [entry.latency_us for entry in store.measurements()] == [21.0, 19.0]


def test_a_failure_never_replaces_a_success_but_the_other_way_round(store: MeasurementStore) -> None:
    """A failure never replaces a success but the other way round."""
    store.record([success(1), failure(2)])
    store.record([failure(1), success(2)])
    assert [entry.status for entry in store.measurements()] == [Status.OK, Status.OK]


def test_options_of_a_problem_are_part_of_the_point(store: MeasurementStore) -> None:
    """Options of a problem are part of the point."""
    problems = [GemmProblem(1, 2, 3, layout=layout, alignment=a) for layout in ("nk", "kn") for a in (16, 2)]
    store.record([replace(success(1), problem=problem) for problem in problems])
    assert [entry.problem for entry in store.measurements()] == problems


def test_the_order_of_config_fields_does_not_matter(store: MeasurementStore) -> None:
    """The order of config fields does not matter."""
    backwards = KernelConfig(**dict(reversed(list(CONFIG.items()))))
    store.record_compiled([replace(COMPILED, config=backwards)])
    store.record([replace(success(1), config=backwards), success(1)])
    assert len(store.measurements()) == 1
    assert tuple(store.to_table(GEMM, dtype="bf16").configs[0].config) == GEMM.fields


def test_a_batch_is_all_or_nothing(store: MeasurementStore) -> None:
    """A batch is all or nothing."""
    store.record([success(1)])

    def broken() -> Iterator[Measurement]:
        yield success(2)
        yield success(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.record(broken())
    assert [entry.problem.dims[0] for entry in store.measurements()] == [1]
    # The ids of the lost batch must not be remembered.
    store.record([success(2)])
    assert [entry.problem.dims[0] for entry in store.measurements()] == [1, 2]


@pytest.mark.parametrize(
    "entry",
    [success(1, float("nan")), success(1, -1.0), success(1, float("inf")), replace(failure(1), latency_us=3.0),
     replace(success(1), latency_us=None)],
)  # fmt: skip
def test_status_and_latency_must_agree(store: MeasurementStore, entry: Measurement) -> None:
    """Status and latency must agree."""
    with pytest.raises(MeasurementError, match="status"):
        store.record([success(5), entry])
    assert store.measurements() == []


def test_a_configuration_cannot_become_another_kernel(store: MeasurementStore) -> None:
    """A configuration cannot become another kernel."""
    for changed in (replace(COMPILED, num_regs=90), replace(COMPILED, smem_bytes=49160)):
        with pytest.raises(StoreError, match=r"69, 0, 49152"):
            store.record_compiled([changed])
    store.record_compiled([COMPILED])
    assert store.compiled_configs() == (COMPILED,)


def test_register_jitter_of_the_compiler_keeps_the_first_numbers(store: MeasurementStore) -> None:
    """Compiling again with a few registers more does not refuse a resumed run."""
    store.record_compiled([replace(COMPILED, num_regs=COMPILED.num_regs + 4)])
    assert store.compiled_configs() == (COMPILED,)


@pytest.mark.parametrize(
    ("environment", "field"),
    [({**ENVIRONMENT, "driver": "590.2"}, "driver"), ({"gpu": "NVIDIA H200", "driver": "580.1"}, "kernel_sha256"),
     ({**ENVIRONMENT, "triton": "3.6"}, "triton")],
)  # fmt: skip
def test_another_environment_is_refused_by_field(
    store: MeasurementStore, environment: dict[str, str], field: str
) -> None:
    """Another environment is refused by field."""
    with pytest.raises(StoreError, match=rf"s\.db: measured with {field} ="):
        MeasurementStore(store.path, environment)
    with MeasurementStore(store.path) as reader:
        assert reader.environment() == ENVIRONMENT


def test_a_table_goes_in_and_comes_out(store: MeasurementStore, table: MeasurementTable) -> None:
    """A table goes in and comes out."""
    store.import_table(table, "layer")
    back = store.to_table(GEMM, dtype="bfloat16", exhaustive_strata=("layer",))
    assert back.configs == table.configs
    for column in ("dims", "config_index", "latency_us", "exhaustive"):
        assert np.array_equal(getattr(back, column), getattr(table, column))


def test_an_export_can_be_read_and_imported(tmp_path: Path, store: MeasurementStore, table: MeasurementTable) -> None:
    """An export can be read and imported."""
    store.import_table(table, "layer")
    store.record([success(1), failure(2)])
    assert store.export_csv(tmp_path / "all.csv.gz", GEMM, dtype="bf16") == 6
    assert store.export_csv(tmp_path / "some.csv", GEMM, dtype="bf16", strata=("loop",)) == 1
    assert ",set,method,spread_us,rounds" in (tmp_path / "some.csv").read_text()
    back = read_measurements(tmp_path / "all.csv.gz", GEMM, "bf16", find_arch("h200"), exhaustive=True).table
    with MeasurementStore(tmp_path / "other.db") as other:
        other.import_table(back, "imported")
        assert np.array_equal(other.to_table(GEMM, dtype="bf16").latency_us, back.latency_us)


def test_a_table_holds_one_dtype_and_layout_at_any_alignment(store: MeasurementStore) -> None:
    """A table holds one dtype and layout, whatever the alignment."""
    problems = [
        GemmProblem(1, 64, 64), GemmProblem(2, 64, 64, dtype="fp16"), GemmProblem(3, 64, 64, layout="kn"),
        GemmProblem(4, 64, 64, alignment=2),
    ]  # fmt: skip
    store.record([replace(success(1), problem=problem) for problem in problems])
    assert store.to_table(GEMM, dtype="bf16").dims.tolist() == [[1, 64, 64], [4, 64, 64]]
    assert store.to_table(GEMM, dtype="bf16", layout="kn").dims.tolist() == [[3, 64, 64]]
    with pytest.raises(StoreError, match="no measurements of gemm int8"):
        store.to_table(GEMM, dtype="int8")


def test_rows_of_a_configuration_that_was_never_compiled_are_named(store: MeasurementStore) -> None:
    """Rows of a configuration that was never compiled are named."""
    store.record([replace(success(1), config=CONFIG.replace(num_warps=8))])
    with pytest.raises(StoreError, match=r"not compiled: .*num_warps=8"):
        store.to_table(GEMM, dtype="bf16")


def test_a_file_that_is_no_store_is_refused_and_untouched(tmp_path: Path) -> None:
    """A file that is no store is refused and untouched."""
    (tmp_path / "text.db").write_text("m,n,k\n" * 500)
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE songs (title TEXT)")
    other.close()
    for name, message in (("text.db", "not a measurement store"), ("other.db", "another program")):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(StoreError, match=rf"{name}: .*{message}.*choose another file"):
            MeasurementStore(tmp_path / name, ENVIRONMENT)
        assert (tmp_path / name).read_bytes() == before


def test_a_newer_schema_is_refused(store: MeasurementStore) -> None:
    """A newer schema is refused."""
    store.close()
    with sqlite3.connect(store.path) as raw:
        raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(StoreError, match=r"schema version 99 is newer .*update wavetune"):
        MeasurementStore(store.path)


def test_an_older_schema_is_migrated_and_keeps_its_rows(
    store: MeasurementStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older schema is migrated and keeps its rows."""
    store.record([success(1)])
    store.close()
    step = ("notes", ("CREATE TABLE notes (text TEXT)",))
    monkeypatch.setattr(connection_module, "MIGRATIONS", (*connection_module.MIGRATIONS, step))
    with MeasurementStore(store.path, ENVIRONMENT) as migrated:
        assert migrated.measurements() == [success(1)]
    with contextlib.closing(sqlite3.connect(store.path)) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (len(connection_module.MIGRATIONS),)
        assert raw.execute("SELECT count(*) FROM notes").fetchone() == (0,)


def test_a_failed_migration_leaves_the_old_schema(store: MeasurementStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed migration leaves the old schema."""
    store.record([success(1)])
    store.close()
    step = ("broken", ("CREATE TABLE half (text TEXT)", "CREATE NONSENSE"))
    with monkeypatch.context() as patch:
        patch.setattr(connection_module, "MIGRATIONS", (*connection_module.MIGRATIONS, step))
        with pytest.raises(StoreError, match=r"s\.db"):
            MeasurementStore(store.path)
    with MeasurementStore(store.path, ENVIRONMENT) as old:
        assert old.measurements() == [success(1)]


def test_a_store_held_by_another_writer_says_so_and_loses_nothing(store: MeasurementStore) -> None:
    """A store held by another writer says so and loses nothing."""
    store.record([success(1)])
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with (
            MeasurementStore(store.path, busy_timeout_s=0.05) as second,
            pytest.raises(StoreError, match=r"s\.db: another process holds the store"),
        ):
            second.record([success(2)])
        holder.execute("ROLLBACK")
    store.record([success(2)])
    assert len(store.measurements()) == 2


def test_a_full_disk_says_so_and_keeps_the_batches_before(store: MeasurementStore) -> None:
    """A full disk says so and keeps the batches before."""
    store.record([success(1)])
    sqlite = store._connection._sqlite
    sqlite.execute(f"PRAGMA max_page_count = {sqlite.execute('PRAGMA page_count').fetchone()[0]}")
    with pytest.raises(StoreError, match=r"s\.db: the disk is full; free space and run again"):
        store.record(success(m) for m in range(2, 5000))
    assert store.measurements() == [success(1)]
    sqlite.execute("PRAGMA max_page_count = 1000000")
    store.record([success(2)])
    store.close()
    with MeasurementStore(store.path, ENVIRONMENT) as again:
        assert again.measurements() == [success(1), success(2)]


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write anywhere: become nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_folder_or_file_says_so_and_loses_nothing() -> None:
    """A read only folder or file says so and loses nothing."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        with MeasurementStore(folder / "s.db", ENVIRONMENT) as store:
            store.record([success(1)])
        (folder / "s.db").chmod(0o444)
        folder.chmod(0o555)
        try:
            with unprivileged():
                with pytest.raises(StoreError, match=r"new\.db: cannot open the file; check that it and its folder"):
                    MeasurementStore(folder / "new.db", ENVIRONMENT)
                with pytest.raises(StoreError, match=r"s\.db: .*(read-only|cannot open)"):
                    MeasurementStore(folder / "s.db", ENVIRONMENT)
        finally:
            folder.chmod(0o755)
        (folder / "s.db").chmod(0o644)
        with MeasurementStore(folder / "s.db", ENVIRONMENT) as store:
            assert store.measurements() == [success(1)]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """A missing folder is named."""
    with pytest.raises(StoreError, match="folder does not exist"):
        MeasurementStore(tmp_path / "none" / "s.db")
    with pytest.raises(StoreError, match="cannot open"):
        MeasurementStore(tmp_path)
