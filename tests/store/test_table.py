"""Tables of measurements: restricted to some of their configurations."""

from __future__ import annotations

from wavetune.store.table import MeasurementTable


def test_a_restricted_table_keeps_the_rows_of_its_configurations(table: MeasurementTable) -> None:
    """Every row that is left says the same as before, and no other configuration is left."""
    kept = {entry.config for entry in table.configs[::2]}
    some = table.restrict(kept)

    def rows(of: MeasurementTable) -> list[tuple[object, ...]]:
        found = zip(of.dims.tolist(), of.config_index, of.latency_us.tolist(), strict=True)
        return [(dims, of.configs[index].config, us) for dims, index, us in found if of.configs[index].config in kept]

    assert {entry.config for entry in some.configs} == kept
    assert rows(some) == rows(table)
    assert len(some) == len(rows(table)) < len(table)
