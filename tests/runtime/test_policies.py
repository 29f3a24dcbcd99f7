"""What is answered beyond the tables, when disabled, and when forced; and that every answer is legal."""

from __future__ import annotations

from pathlib import Path

import pytest
from hand_made import EXACT_ONLY, POINTER, SPLIT, TMA, gemm_config, make_model
from hypothesis import given, settings
from hypothesis import strategies as st

import wavetune
from wavetune.core.arch import find_arch
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import ConfigError, MissError, NoModelError
from wavetune.mapping.legality import gemm_illegal_reason, grid_limit_reason
from wavetune.runtime.codec import write_model
from wavetune.runtime.model_file import ExactEntry

ARCH = "nvidia-h200"
H200 = find_arch(ARCH)
EXACT, NEAR, BEYOND, ROWS = (512, 4096, 4096), (500, 4000, 4096), (100_000, 512, 512), (3, 3)


@pytest.fixture(autouse=True)
def model_folder(tmp_path: Path) -> None:
    """Answer from the hand-made model."""
    write_model(make_model(), tmp_path / "models" / ARCH / "gemm-bf16.json")
    wavetune.configure(models=tmp_path / "models")


def ask(dims: tuple[int, int, int], **options: object) -> wavetune.Choice:
    """Explain a choice, which `choose_config` must agree with, first asked and asked again."""
    choice = wavetune.explain_choice(*dims, arch=ARCH, **options)  # type: ignore[arg-type]
    for _ in range(2):
        assert wavetune.choose_config(*dims, arch=ARCH, **options) == choice.config  # type: ignore[arg-type]
    assert wavetune.choose(GemmProblem(*dims), arch=ARCH) is not None or options
    return choice


@pytest.mark.parametrize("by", ["argument", "setting"])
@pytest.mark.parametrize("on_miss", ["model", "default", "error"])
def test_the_policy_counts_beyond_the_tables_only(on_miss: str, by: str) -> None:
    """Exact and near answers are the same under every policy; beyond, it decides."""
    options = {}
    if by == "setting":
        wavetune.configure(on_miss=on_miss)
    else:
        options["on_miss"] = on_miss
    assert (ask(EXACT, **options).source, ask(EXACT, **options).config) == ("exact", EXACT_ONLY)
    assert ask(NEAR, **options).source == "nearest"
    assert ask((0, 5, 5), **options).source == "empty"
    if on_miss == "model":
        choice = ask(BEYOND, **options)
        assert choice.source == "model"
        assert choice.config == wavetune.rank_configs(GemmProblem(*BEYOND), arch=ARCH)[0].config
    elif on_miss == "default":
        choice = ask(BEYOND, **options)
        assert (choice.source, choice.config) == ("default", POINTER)
        assert choice.latency_us > 0
    else:
        for call in (wavetune.explain_choice, wavetune.choose_config) * 2:
            with pytest.raises(MissError, match=r"GemmProblem\(m=100000.*on_miss"):
                call(*BEYOND, arch=ARCH, **options)


def test_a_call_s_policy_is_its_own() -> None:
    """What was answered under one policy is not remembered for another."""
    modelled = wavetune.choose_config(*BEYOND, arch=ARCH)
    assert modelled != POINTER
    for _ in range(2):
        assert wavetune.choose_config(*BEYOND, arch=ARCH, on_miss="default") == POINTER
        with pytest.raises(MissError):
            wavetune.choose_config(*BEYOND, arch=ARCH, on_miss="error")
        assert wavetune.choose_config(*BEYOND, arch=ARCH) == modelled
    wavetune.configure(on_miss="default")
    assert wavetune.choose_config(*BEYOND, arch=ARCH) == POINTER
    assert wavetune.choose_config(*BEYOND, arch=ARCH, on_miss="model") == modelled


def test_disabled_means_the_default() -> None:
    """Disabled, every problem gets the default, whatever the tables know and whatever the policy; no miss is listed."""
    wavetune.configure(disable=True)
    for dims in (EXACT, NEAR, BEYOND):
        for on_miss in ("model", "error", "measure", "default"):
            assert (ask(dims, on_miss=on_miss).source, ask(dims).config) == ("default", POINTER)
    assert wavetune.misses() == []
    wavetune.configure(disable=None)
    assert ask(EXACT).source == "exact"


def test_a_default_that_is_illegal_gives_way(tmp_path: Path) -> None:
    """The default, too, is only answered where it is legal."""
    write_model(make_model(default_index=2), tmp_path / "models" / ARCH / "gemm-bf16.json")
    wavetune.clear_caches()
    assert ask(BEYOND, on_miss="default").config == TMA
    unaligned = wavetune.explain_choice(*BEYOND, arch=ARCH, alignment=2, on_miss="default")
    assert unaligned.source == "default"
    assert unaligned.config["load"] == "pointer"
    wavetune.configure(disable=True)
    assert wavetune.choose_config(*BEYOND, arch=ARCH, alignment=2)["load"] == "pointer"


FORCED = {"block_m": 128, "block_n": 128, "block_k": 64, "group_m": 4, "num_warps": 8, "num_stages": 3, "load": "tma"}


def test_a_forced_configuration_answers_where_it_is_legal(caplog: pytest.LogCaptureFixture) -> None:
    """It comes before everything; where it is illegal the tables answer, and one warning says why."""
    wavetune.configure(force_config=",".join(f"{name}={value}" for name, value in FORCED.items()))
    for dims in (EXACT, NEAR, BEYOND):
        choice = ask(dims)
        assert (choice.source, choice.config["num_warps"], choice.config["split_k"]) == ("forced", 8, 1)
    assert wavetune.misses() == []
    assert ask((0, 5, 5)).source == "empty"
    caplog.clear()
    for _ in range(2):
        choice = wavetune.explain_choice(*NEAR, arch=ARCH, alignment=2)
        assert choice.source == "nearest"
        assert choice.config["load"] == "pointer"
    assert len(caplog.records) == 1
    assert "TMA needs 16-byte alignment" in caplog.text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"split_k": 32, "schedule": "split_k"}, "exceeds the 8 loop trips"),
        ({"num_stages": 20}, "shared memory"),
        ({"num_warps": 64}, "1024 threads"),
        ({"split_k": 2}, "schedule tile"),
        ({"block_m": 100}, "block_m must be a power of two"),
        ({"num_warps": 3}, "num_warps must be a power of two"),
        ({"block_k": 1}, "at least 16 x 16 x 16"),
        ({"block_n": 8}, "at least 16 x 16 x 16"),
        ({"epilogue_split": 64}, "epilogue_split must be 1 or 2"),
        ({"block_m": 4096, "block_k": 16, "num_stages": 1}, "a TMA box"),
        ({"schedule": "warp_specialized", "num_stages": 1}, "waits for ever"),
    ],
)
def test_a_forced_configuration_keeps_the_limits_of_the_gpu(
    change: dict[str, int | str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be launched on this GPU is not answered, however it was asked for."""
    wavetune.configure(force_config={**FORCED, **change})
    assert ask(BEYOND).source == "model"
    assert reason in caplog.text


def test_a_tile_has_one_scale_of_b(caplog: pytest.LogCaptureFixture) -> None:
    """The kernels multiply a tile of 128 x 128 blocks by one: wider ones would be wrong without an error."""
    wavetune.configure(models=None, force_config={**FORCED, "block_k": 128, "block_n": 256, "num_stages": 2})
    wide = wavetune.explain_choice(512, 4096, 4096, dtype="fp8", arch=ARCH)
    assert (wide.source, wide.config["block_n"]) == ("forced", 256)
    assert wavetune.explain_choice(512, 4096, 4096, dtype="fp8_block128", arch=ARCH).source != "forced"
    assert "more than one scale of B" in caplog.text


@pytest.mark.parametrize("forced", [{"block_m": 128}, {**FORCED, "block_q": 3}, {**FORCED, "load": "magic"}])
def test_a_malformed_forced_configuration_is_an_error(forced: dict[str, int | str]) -> None:
    """A missing, unknown or impossible field is named."""
    wavetune.configure(force_config=forced)
    for _ in range(2):
        with pytest.raises(ConfigError, match="WAVETUNE_FORCE_CONFIG"):
            wavetune.choose_config(*NEAR, arch=ARCH)


SIZES = st.one_of(st.integers(1, 300), st.integers(1, 20_000), st.integers(1, 2**20))
ANY_CONFIG = st.builds(
    lambda m, n, split, load, stages: dict(gemm_config(m, n, split_k=split, load=load).replace(num_stages=stages)),
    st.sampled_from([16, 64, 128, 256]), st.sampled_from([64, 256]), st.sampled_from([1, 1, 4]),
    st.sampled_from(["pointer", "tma"]), st.integers(1, 12),
)  # fmt: skip


@settings(max_examples=80)
@given(
    SIZES, SIZES, SIZES, st.sampled_from([0, 16, 8, 2]), st.sampled_from(["model", "default"]),
    st.sampled_from(["any", "deterministic", "batch_invariant"]), st.sampled_from([None, 132, 30]),
    st.one_of(st.none(), ANY_CONFIG), st.booleans(),
)  # fmt: skip
def test_every_answer_is_legal_under_every_policy(
    m: int, n: int, k: int, alignment: int, on_miss: str, numerics: str, num_sms: int | None,
    forced: dict[str, int | str] | None, disable: bool,
) -> None:  # fmt: skip
    """Whatever is forced, disabled or restricted, the answer can be launched on the real shape."""
    wavetune.configure(force_config=forced, disable=disable)
    problem = GemmProblem(m, n, k, alignment=alignment)
    config = wavetune.choose_config(
        m, n, k, alignment=alignment, arch=ARCH, on_miss=on_miss, numerics=numerics, num_sms=num_sms
    )
    assert gemm_illegal_reason(problem, config, H200) is None
    assert grid_limit_reason(problem, config) is None
    if numerics == "batch_invariant":
        assert config["split_k"] == 1


def test_an_exact_entry_that_is_illegal_for_the_strides_is_a_miss(tmp_path: Path) -> None:
    """An entry that loads with TMA does not answer for operands that TMA cannot load."""
    write_model(make_model(exact={EXACT: ExactEntry(2, 10.0)}), tmp_path / "models" / ARCH / "gemm-bf16.json")
    wavetune.clear_caches()
    assert (ask(EXACT).source, ask(EXACT).config) == ("exact", TMA)
    choice = wavetune.explain_choice(*EXACT, arch=ARCH, alignment=8)
    assert choice.source == "nearest"
    assert choice.config in (POINTER, SPLIT)


def test_without_a_model_there_is_no_answer() -> None:
    """No policy invents a configuration for a kernel that nothing knows."""
    for on_miss in ("model", "default", "measure", "error"):
        with pytest.raises(NoModelError):
            wavetune.choose_config(1, 2, 3, arch="nvidia-b200", on_miss=on_miss)


def test_a_grid_that_nothing_can_launch_is_the_reason() -> None:
    """The error names what no configuration can mend, and not the alignment of the default."""
    side = 2**31 - 1
    with pytest.raises(NoModelError, match=r"grid exceeds 2\*\*31 - 1 CTAs\. Split the product"):
        wavetune.choose_config(side, side, side, arch=ARCH)
    assert wavetune.choose_config(side, side, 0, arch=ARCH) == POINTER


def test_configurations_are_what_launchers_take() -> None:
    """Answers under every policy are complete configurations."""
    for on_miss in ("model", "default"):
        config = wavetune.choose_config(*BEYOND, arch=ARCH, on_miss=on_miss)
        assert isinstance(config, KernelConfig)
        assert tuple(config) == tuple(POINTER)
