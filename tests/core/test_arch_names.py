"""GPUs and their names."""

from __future__ import annotations

import pytest

from wavetune.core.arch import ARCHS, ArchSpec, find_arch
from wavetune.errors import ArchError


@pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
def test_every_name_of_a_gpu_finds_it(arch: ArchSpec) -> None:
    """Every name of a GPU finds it."""
    for spelling in (arch.name, *arch.aliases):
        assert find_arch(spelling) is arch
        assert find_arch(spelling.upper()) is arch


def test_no_name_belongs_to_two_gpus() -> None:
    """No name belongs to two gpus."""
    spellings = [spelling.casefold() for arch in ARCHS.values() for spelling in (arch.name, *arch.aliases)]
    assert len(spellings) == len(set(spellings))


@pytest.mark.parametrize(
    "name",
    ["h2", "h2000", "NVIDIA H200 NVL", "NVIDIA H200 MIG 1g.18gb", "nvidia-h200 ", "NVIDIA H100 PCIe", "", None, 200],
)
def test_names_are_matched_exactly_never_by_prefix(name: object) -> None:
    """Names are matched exactly never by prefix."""
    with pytest.raises(ArchError, match="nvidia-h200"):
        find_arch(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
def test_every_gpu_is_consistent_and_sourced(arch: ArchSpec) -> None:
    """Every GPU is consistent and sourced."""
    assert arch.smem_per_cta_bytes + arch.smem_reserved_bytes <= arch.smem_per_sm_bytes
    assert min(arch.num_sms, arch.l2_bytes, arch.registers_per_sm, arch.max_ctas_per_sm) > 0
    assert len(arch.source) > 20


@pytest.mark.parametrize(
    ("name", "has_tma"), [("a100", False), ("l40s", False), ("h200", True), ("b200", True), ("mi300x", False)]
)
def test_tma_exists_from_compute_capability_nine(name: str, has_tma: bool) -> None:
    """TMA exists from compute capability nine."""
    assert find_arch(name).has_tma is has_tma
