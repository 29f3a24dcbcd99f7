# ruff: noqa: E402 (what is imported below needs torch and triton)
"""Where a launcher's configurations come from: the runtime, the other layout's model, a fixed rule."""

import dataclasses
import logging
from collections.abc import Callable
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import wavetune
from wavetune.core.arch import ARCHS, ArchSpec, find_arch
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import ArchError, ConfigError, NoModelError
from wavetune.kernels.gemm import illegal_reason
from wavetune.kernels.gemm_space import fallback_configs, fallback_rows
from wavetune.kernels.registry import find_family
from wavetune.launch import gpu as gpu_module
from wavetune.launch import source
from wavetune.launch.gpu import LaunchGpu
from wavetune.launch.source import ConfigSource
from wavetune.runtime.device import resolve_device

H200 = resolve_device("h200")
ROWS = (1, 2, 15, 16, 17, 32, 33, 64, 65, 200, 256, 257, 1000, 8192)


def make_source(layout: str = "nk", numerics: str = "any", *, known: bool = True) -> ConfigSource:
    """Return the source of an H200, or of a GPU that nobody knows."""
    gpu = LaunchGpu(0, H200.arch, H200 if known else None)
    return ConfigSource(gpu, "bf16", layout, numerics)


@pytest.fixture
def without_models(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that takes away the models of layouts."""

    def take_away(*layouts: str) -> None:
        for name in ("choose_config", "rank_configs", "reachable_configs"):
            original = getattr(source, name)

            def guarded(*args: object, original: Callable[..., object] = original, **options: object) -> object:
                layout = args[0].layout if isinstance(args[0], GemmProblem) else options["layout"]
                if layout in layouts:
                    raise NoModelError(f"no model of {layout}")
                return original(*args, **options)

            monkeypatch.setattr(source, name, guarded)
        monkeypatch.setattr(source, "_logged", set())

    return take_away


@pytest.mark.parametrize("numerics", ["any", "deterministic", "batch_invariant"])
def test_the_runtime_answers_where_it_can(numerics: str) -> None:
    """Choice, ranking and reachable set are those of the public functions."""
    layer = make_source(numerics=numerics)
    for m in ROWS:
        assert layer.choose(m, 4096, 4096, 16) == wavetune.choose_config(m, 4096, 4096, arch="h200", numerics=numerics)
        problem = GemmProblem(m, 4096, 4096)
        ranked = [entry.config for entry in wavetune.rank_configs(problem, arch="h200", numerics=numerics)]
        assert list(layer.rank(problem))[: len(ranked)] == ranked
    expected = wavetune.reachable_configs(4096, 4096, (1, 300), arch="h200", numerics=numerics)
    assert layer.reachable(4096, 4096, (1, 300), 16) == expected


@pytest.mark.parametrize("missing", [("kn",), ("kn", "nk")])
@pytest.mark.parametrize("alignment", [16, 2])
def test_answers_are_legal_and_reachable_without_models(
    missing: tuple[str, ...], alignment: int, without_models: Callable[..., None]
) -> None:
    """Whatever answers, `reachable` knew it, and what is ranked is legal."""
    without_models(*missing)
    layer = make_source("kn")
    reachable = layer.reachable(1000, 3000, (1, 300), alignment)
    for m in range(1, 301):
        config = layer.choose(m, 1000, 3000, alignment)
        problem = GemmProblem(m, 1000, 3000, layout="kn", alignment=alignment)
        assert config in reachable
        assert illegal_reason(problem, config, H200.arch) is None
        assert layer.choose(m, 1000, 3000, alignment) is config
    for ranked in layer.rank(problem):
        assert illegal_reason(problem, ranked, H200.arch) is None
    if missing == ("kn",):
        assert config == wavetune.choose_config(300, 1000, 3000, alignment=alignment, arch="h200")


@pytest.mark.parametrize("numerics", ["any", "batch_invariant"])
def test_what_takes_no_kn_gives_way_to_the_next_best(numerics: str, caplog: pytest.LogCaptureFixture) -> None:
    """Where the model of [n, k] answers by a warp-specialised kernel, [k, n] gets the best that can read it."""
    n, k, rows = 8192, 8192, range(4090, 4100)
    as_nk, as_kn = make_source("nk", numerics), make_source("kn", numerics)
    assert any(as_nk.choose(m, n, k, 16)["schedule"] == "warp_specialized" for m in rows)
    reachable = as_kn.reachable(n, k, (rows[0], rows[-1]), 16)
    with caplog.at_level(logging.WARNING, logger="wavetune"):
        for m in rows:
            problem = GemmProblem(m, n, k, layout="kn")
            config, preferred = as_kn.choose(m, n, k, 16), as_nk.choose(m, n, k, 16)
            is_legal = illegal_reason(problem, preferred, H200.arch) is None
            assert config == (preferred if is_legal else next(as_kn.rank(problem)))
            assert config in reachable
    assert all(illegal_reason(GemmProblem(1, n, k, layout="kn"), each, H200.arch) is None for each in reachable)
    assert "nobody tuned" not in caplog.text


def test_an_unknown_gpu_is_served_and_said_once(
    without_models: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """No name of a known GPU: a warning, a handful of configurations for all m, one for all m where it must be."""
    without_models()
    with caplog.at_level(logging.WARNING, logger="wavetune"):
        layer = make_source(known=False)
        assert 2 <= len({layer.choose(m, 4096, 4096, 16) for m in ROWS}) <= 6
    (record,) = caplog.records
    assert "nobody tuned" in record.getMessage()
    assert len({make_source(numerics="batch_invariant", known=False).choose(m, 4096, 4096, 16) for m in ROWS}) == 1


def test_an_unknown_gpu_is_described_by_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limits decide what is legal; on known ones a slice launches on the SMs that it has."""
    properties = SimpleNamespace(
        name="NVIDIA Something", major=12, minor=0, multi_processor_count=36, warp_size=32,
        max_threads_per_multi_processor=1536, regs_per_multiprocessor=65536, shared_memory_per_multiprocessor=102400,
        shared_memory_per_block=49152, shared_memory_per_block_optin=101376, L2_cache_size=32 * 2**20,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(gpu_module, "cuda_device", refuse_device)
    gpu = gpu_module._describe_gpu(0)
    assert (gpu.arch.target, gpu.arch.num_sms, gpu.arch.max_warps_per_sm, gpu.device) == ("sm_120", 36, 48, None)
    for m in ROWS:
        config = ConfigSource(gpu, "bf16", "nk", "any").choose(m, 4096, 4096, 16)
        stage_bytes = 2 * (config["block_m"] + config["block_n"]) * config["block_k"]
        assert stage_bytes * config["num_stages"] <= properties.shared_memory_per_block_optin
    monkeypatch.setattr(gpu_module, "cuda_device", lambda index: resolve_device("h200", 16))
    assert gpu_module._describe_gpu(0).arch == dataclasses.replace(H200.arch, num_sms=16)


def refuse_device(index: int) -> None:
    """Do not know the GPU."""
    raise ArchError("unknown GPU")


def test_batch_invariance_has_no_stand_in() -> None:
    """What sums in another order is never offered, not even at the end of the ranking."""
    problem = GemmProblem(8, 4096, 4096)
    ranked = wavetune.rank_configs(problem, arch="h200", numerics="batch_invariant")
    assert len(list(make_source(numerics="batch_invariant").rank(problem))) == len(ranked)
    assert len(list(make_source().rank(problem))) > len(wavetune.rank_configs(problem, arch="h200"))


def test_changed_settings_are_seen(without_models: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers without a model are remembered until the settings change."""
    without_models("kn")
    layer = make_source("kn")
    before = layer.choose(8, 4096, 4096, 16)
    forced = before.replace(group_m=1 if before["group_m"] != 1 else 2)
    try:
        wavetune.configure(force_config=forced)
        assert layer.choose(8, 4096, 4096, 16) == forced
    finally:
        wavetune.configure(force_config=None)
    assert layer.choose(8, 4096, 4096, 16) == before


@pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_fixed_rule(arch: ArchSpec, dtype: str) -> None:
    """Legal for any alignment, never splits k, and its configurations in a range are those of its rows."""
    family, found = find_family("gemm"), {}
    for m in range(1, 400):
        problem = GemmProblem(m, 777, 1001, dtype=dtype)
        config: KernelConfig = family.fallback_config(problem, arch)
        assert illegal_reason(problem, config, arch) is None
        assert (config["load"], config["split_k"]) == ("pointer", 1)
        found[m] = config
        assert next(fallback_configs(problem, arch, one_for_all_m=True)) == next(
            fallback_configs(GemmProblem(1, 777, 1001, dtype=dtype), arch, one_for_all_m=True)
        )
    for low, high in ((1, 399), (16, 17), (20, 30), (256, 256)):
        wanted = {found[m] for m in range(low, high + 1)}
        assert {found[m] for m in fallback_rows((low, high))} == wanted


def test_the_fixed_rule_refuses_what_no_kernel_computes() -> None:
    """An integer product is named."""
    with pytest.raises(ConfigError, match="int8"):
        find_family("gemm").fallback_config(GemmProblem(8, 8, 8, dtype="int8"), find_arch("h200"))
