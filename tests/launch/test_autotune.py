"""`wavetune.autotune`: every source answers in its place, what was measured is kept, and threads may share a kernel."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")

from made_up_kernel import Compiled, MadeUpBench, MadeUpKernel, Tensor  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402

import wavetune  # noqa: E402
from wavetune.errors import ConfigError, InfeasibleConfigError, MappingError, MissError  # noqa: E402
from wavetune.launch.autotune import AutotunedKernel, autotune  # noqa: E402
from wavetune.launch.autotune import bench as bench_module  # noqa: E402
from wavetune.launch.autotune.tables import Place  # noqa: E402
from wavetune.mapping.source_digest import mapping_digest  # noqa: E402
from wavetune.runtime import family_source, sources  # noqa: E402
from wavetune.runtime.choice import Source  # noqa: E402
from wavetune.runtime.family_file import FamilyFile, FamilyForm, family_file_name, write_family  # noqa: E402

BLOCKS = (16, 32, 64, 128, 256)


def configs(blocks: tuple[int, ...] = BLOCKS) -> list[Any]:
    """Return one configuration a block; the first is the default."""
    return [triton.Config({"BLOCK": block}, num_warps=4, num_stages=2) for block in blocks]


def best_is(block: int) -> Callable[[Mapping[str, Any]], float]:
    """Return latencies that grow with the distance to one block."""
    return lambda launch: 100.0 + 10.0 * abs(math.log2(launch["BLOCK"] / block))


BEST_IS_64 = best_is(64)


def grid_of(key: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Count the CTAs of the made-up kernel."""
    return int(key["M"] * -(-key["N"] // config["BLOCK"]))


def trips_of(key: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Count the trips of each."""
    return int(config["BLOCK"] // 16)


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path) -> Iterator[None]:
    """Keep the user's store and models of this machine out."""
    sources.forget_warnings()
    wavetune.configure(cache_dir=tmp_path / "cache", models=[tmp_path / "models"])
    yield
    wavetune.configure(**dict.fromkeys(("cache_dir", "models", "on_miss", "disable", "force_config",
                                        "measure_budget_ms", "measure_top_k")))  # fmt: skip


Made = tuple[AutotunedKernel, MadeUpKernel, MadeUpBench]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Made]:
    """Return a maker of kernels on a made-up device."""

    def build(
        latency_us: Callable[[Mapping[str, Any]], float] = BEST_IS_64,
        *,
        blocks: tuple[int, ...] = BLOCKS,
        effect: Any = None,
        refuse: Any = None,
        **options: Any,
    ) -> Made:
        raw = MadeUpKernel(effect, refuse)
        bench = MadeUpBench(raw, latency_us)
        monkeypatch.setattr(bench_module, "_BENCH", bench)
        options = {"configs": configs(blocks), "key": ["M", "N"], "name": "made-up", **options}
        return autotune(**options)(raw), raw, bench

    return build


def launch(kernel: AutotunedKernel, m: int = 8, n: int = 4096, dtype: str = "torch.float16", **kwargs: Any) -> Any:
    """Launch on tensors of an element type."""
    return kernel[(m,)](Tensor(dtype=dtype), Tensor(dtype=dtype), m, n, **kwargs)


def test_an_unknown_key_is_measured_once(make: Callable[..., Made]) -> None:
    """The first launch of a key times the candidates; later ones launch the winner and nothing else."""
    kernel, raw, bench = make()
    assert launch(kernel) == "launched"
    assert raw.blocks()[-1] == 64
    assert kernel.best_config.kwargs == {"BLOCK": 64}
    n_launches = len(raw.launched)
    for _ in range(3):
        launch(kernel)
    assert raw.blocks()[n_launches:] == [64] * 3
    assert bench.opened == 1
    launch(kernel, m=9)
    launch(kernel, dtype="torch.float32")
    assert bench.opened == 3


def test_the_next_process_starts_exact(make: Callable[..., Made]) -> None:
    """The winner is in the user's store: another kernel object of the same source does not measure again."""
    kernel, _, _ = make()
    launch(kernel)
    assert kernel.explain(Tensor(), Tensor(), 8, 4096).source is Source.MEASURED
    again, raw, bench = make(best_is(16))
    launch(again)
    assert (raw.blocks(), bench.opened) == ([64], 0)
    choice = again.explain(Tensor(), Tensor(), 8, 4096)
    assert (choice.source, choice.latency_us) == (Source.EXACT, 100.0)


def test_what_was_stored_serves_its_own_scope_only(make: Callable[..., Made]) -> None:
    """Another key, element type, name, GPU or SM count is measured; a winner that left the list is forgotten."""
    launch(make()[0])
    for key in ({"m": 9}, {"dtype": "torch.float32"}):
        kernel, _, bench = make()
        launch(kernel, **key)
        assert bench.opened == 1
    kernel, _, bench = make(name="other")
    launch(kernel)
    assert bench.opened == 1
    for place in (Place("nvidia-h100", 132), Place("nvidia-h200", 66)):
        kernel, _, bench = make()
        bench.where = place
        launch(kernel)
        assert bench.opened == 1
    kernel, raw, bench = make(blocks=(16, 32, 128))
    launch(kernel)
    assert bench.opened == 1
    assert raw.blocks()[-1] in (32, 128)


def test_a_changed_kernel_is_measured_again(make: Callable[..., Made]) -> None:
    """A winner of other source code is not used."""
    launch(make()[0])

    def scale_rows(x, y, M, N, BLOCK):  # type: ignore[no-untyped-def]
        return x, y, M, N, BLOCK + 1

    raw = MadeUpKernel()
    raw.fn = scale_rows
    bench = MadeUpBench(raw, best_is(16))
    bench_module._BENCH = bench  # the fixture of `make` puts it back
    launch(autotune(configs(), ["M", "N"], name="made-up")(raw))
    assert bench.opened == 1


def test_nothing_is_timed_during_capture(make: Callable[..., Made]) -> None:
    """A key that first comes up in a capture gets the default, and is measured when the capture is over."""
    kernel, raw, bench = make()
    bench.capturing = True
    launch(kernel)
    launch(kernel)
    assert (raw.blocks(), raw.compiled, bench.opened) == ([16, 16], [], 0)
    bench.capturing = False
    launch(kernel)
    assert raw.blocks()[-1] == 64
    bench.capturing = True
    launch(kernel)
    assert raw.blocks()[-1] == 64


def test_a_busy_gpu_is_left_alone(make: Callable[..., Made], caplog: pytest.LogCaptureFixture) -> None:
    """Where nothing can be timed, the default is launched and the log says why."""
    kernel, raw, bench = make()
    bench.busy = "GPU 0 is already being timed by process 7"
    with caplog.at_level(logging.INFO, "wavetune"):
        launch(kernel)
    assert raw.blocks() == [16]
    assert "process 7" in caplog.text


def test_disabled_means_the_default(make: Callable[..., Made]) -> None:
    """With ``disable`` nothing is looked up or measured."""
    launch(make()[0])
    wavetune.configure(disable=True)
    kernel, raw, bench = make()
    launch(kernel)
    assert (raw.blocks(), bench.opened) == ([16], 0)


def test_a_configuration_can_be_forced(make: Callable[..., Made]) -> None:
    """Fields of this kernel force it; those of another kernel do not concern it."""
    wavetune.configure(force_config="BLOCK=256")
    kernel, raw, bench = make()
    launch(kernel)
    assert (raw.blocks(), bench.opened) == ([256], 0)
    assert kernel.explain(Tensor(), Tensor(), 8, 4096).source is Source.FORCED
    wavetune.configure(force_config="block_m=128")
    kernel, raw, bench = make()
    launch(kernel)
    assert raw.blocks()[-1] == 64


def test_the_miss_policy_decides_about_unknown_keys(make: Callable[..., Made]) -> None:
    """``default`` launches the default, ``error`` raises and names key and kernel; neither measures."""
    wavetune.configure(on_miss="default")
    kernel, raw, bench = make()
    launch(kernel)
    assert (raw.blocks(), bench.opened) == ([16], 0)
    wavetune.configure(on_miss="error")
    with pytest.raises(MissError, match=r"made-up.*4096"):
        launch(make()[0])


def test_keys_that_are_not_exact_are_logged_once(make: Callable[..., Made], caplog: pytest.LogCaptureFixture) -> None:
    """One line a key, with the source; none for what was measured."""
    wavetune.configure(on_miss="default")
    kernel, _, _ = make()
    with caplog.at_level(logging.INFO, "wavetune"):
        for m in (8, 9, 8, 9):
            launch(kernel, m=m)
    lines = [record.getMessage() for record in caplog.records if "not exact" in record.getMessage()]
    assert len(lines) == 2
    assert all("made-up" in line and "default" in line for line in lines)


def test_near_ties_keep_the_default(make: Callable[..., Made]) -> None:
    """A candidate must beat the default by the margin."""
    kernel, raw, _ = make(lambda launch: 100.0 if launch["BLOCK"] == 16 else 99.0)
    launch(kernel)
    assert raw.blocks()[-1] == 16


def test_what_does_not_fit_is_dropped(make: Callable[..., Made], caplog: pytest.LogCaptureFixture) -> None:
    """Configurations that the device refuses cost a line in the log; the best of the rest wins."""

    def refuse(options: Mapping[str, Any]) -> Exception | None:
        return OutOfResources(300_000, 232_448, "shared memory") if options["BLOCK"] >= 64 else None

    kernel, raw, _ = make(best_is(128), refuse=refuse)
    with caplog.at_level(logging.INFO, "wavetune"):
        launch(kernel)
    assert raw.blocks()[-1] == 32
    assert sum("out of resource" in record.message for record in caplog.records) == 3


def test_without_measuring_the_first_that_launches_is_taken(make: Callable[..., Made]) -> None:
    """A default that does not fit is passed over, and remembered as passed over."""
    wavetune.configure(on_miss="default")

    def refuse(options: Mapping[str, Any]) -> Exception | None:
        return OutOfResources(300_000, 232_448, "shared memory") if options["BLOCK"] <= 32 else None

    kernel, raw, _ = make(refuse=refuse)
    launch(kernel)
    launch(kernel)
    assert raw.blocks() == [64, 64]


def test_no_configuration_at_all_is_an_error(make: Callable[..., Made]) -> None:
    """If nothing fits, the error says what the device said."""
    kernel, _, _ = make(refuse=lambda options: OutOfResources(9, 1, "registers"))
    with pytest.raises(InfeasibleConfigError, match="registers"):
        launch(kernel)


def test_mistakes_of_the_caller_are_not_swallowed(make: Callable[..., Made]) -> None:
    """An error that is no configuration's fault reaches the caller, and the arguments are restored first."""
    seen = []

    def effect(arguments: Mapping[str, Any]) -> None:
        arguments["y"].value += 1.0
        seen.append(arguments["y"].value)
        if len(seen) == 3:
            raise TypeError("x must be contiguous")

    kernel, _, _ = make(effect=effect, restore_value=["y"])
    y = Tensor(5.0)
    with pytest.raises(TypeError, match="contiguous"):
        kernel[(1,)](Tensor(), y, 8, 4096)
    assert y.value == 5.0


def test_accumulating_kernels_see_zeros(make: Callable[..., Made]) -> None:
    """``reset_to_zero`` holds before every timed launch and before the caller's own."""
    seen = []

    def effect(arguments: Mapping[str, Any]) -> None:
        seen.append(arguments["y"].value)
        arguments["y"].value += 1.0

    kernel, _, _ = make(effect=effect, reset_to_zero=["y"])
    y = Tensor(7.0)
    kernel[(1,)](Tensor(), y, 8, 4096)
    assert len(seen) > 5
    assert set(seen) == {0.0}
    assert y.value == 1.0
    kernel[(1,)](Tensor(), y, 8, 4096)
    assert y.value == 2.0


def test_in_place_kernels_get_their_values_back(make: Callable[..., Made]) -> None:
    """``restore_value`` holds before every timed launch; the caller sees one launch, not forty."""
    seen = []

    def effect(arguments: Mapping[str, Any]) -> None:
        seen.append(arguments["x"].value)
        arguments["x"].value *= 2.0

    kernel, _, _ = make(effect=effect, restore_value=["x", "y"])
    x = Tensor(3.0)
    kernel[(1,)](x, None, 8, 4096)
    assert len(seen) > 5
    assert set(seen) == {3.0}
    assert x.value == 6.0


def test_hooks_are_called_as_triton_calls_them(make: Callable[..., Made]) -> None:
    """A configuration's hook before each of its launches; the tuner's around timed ones, and once to reset."""
    calls: list[tuple[str, int]] = []
    listed = configs((16, 64))
    listed[1].pre_hook = lambda arguments: calls.append(("config", arguments["BLOCK"]))
    kernel, raw, _ = make(
        configs=listed,
        pre_hook=lambda arguments, reset_only=False: calls.append(("reset" if reset_only else "pre", arguments["M"])),
        post_hook=lambda arguments, exception: calls.append(("post", arguments["BLOCK"])),
    )
    launch(kernel)
    timed = len(raw.launched) - 1
    kinds = [kind for kind, _ in calls]
    assert kinds.count("pre") == kinds.count("post") == timed
    assert kinds.count("reset") == 1
    assert kinds.count("config") == raw.blocks().count(64)
    assert calls[-1] == ("config", 64)
    assert kinds[:4] == ["pre", "post", "pre", "post"]


def test_pruning_takes_triton_s_words(make: Callable[..., Made]) -> None:
    """``early_config_prune``, then ``perf_model`` and ``top_k``; only what is left is compiled and timed."""
    asked = []

    def early(listed: list[Any], named: Mapping[str, Any], **kwargs: Any) -> list[Any]:
        asked.append((named["N"], kwargs))
        return [config for config in listed if config.kwargs["BLOCK"] <= named["N"]]

    kernel, raw, _ = make(
        best_is(256),
        prune_configs_by={"early_config_prune": early, "perf_model": lambda BLOCK, **_: -BLOCK, "top_k": 2},
    )
    launch(kernel, n=128, flag=True)
    assert {compiled["BLOCK"] for compiled in raw.compiled} == {64, 128}
    assert raw.blocks()[-1] == 128
    assert asked == [(128, {"flag": True})]
    with pytest.raises(ConfigError, match="top_k"):
        make(prune_configs_by={"perf_model": max, "top_k": 1.5})
    with pytest.raises(ConfigError, match="prune"):
        make(prune_configs_by={"prune": max})


def test_a_short_budget_reaches_past_winners_first(make: Callable[..., Made]) -> None:
    """What won on other keys is looked at before what never did."""
    kernel, raw, _ = make(best_is(256))
    launch(kernel)
    start = len(raw.launched)
    launch(kernel, m=9)
    # Two readings of the default, then the past winner.
    assert raw.blocks()[start : start + 4] == [16, 16, 256, 256]


def test_slow_kernels_are_not_compared_within_a_short_budget(
    make: Callable[..., Made], caplog: pytest.LogCaptureFixture
) -> None:
    """One launch that takes most of the budget ends the measurement; the log names the setting."""
    kernel, raw, _ = make(lambda launch: 20_000.0)
    with caplog.at_level(logging.INFO, "wavetune"):
        launch(kernel)
    assert raw.blocks() == [16, 16]
    assert "measure_budget_ms" in caplog.text


def test_threads_share_a_kernel(make: Callable[..., Made]) -> None:
    """Many threads and keys: every key is measured once, every launch gets its key's winner."""
    kernel, raw, bench = make(lambda launch: 100.0 + abs(launch["BLOCK"] - BLOCKS[launch["M"] % 5]))
    results: list[tuple[int, int]] = []
    barrier = threading.Barrier(8)

    def work(seed: int) -> None:
        barrier.wait()
        for step in range(200):
            m = (seed * 7 + step) % 20 + 1
            own = Tensor()
            kernel[(m,)](own, own, m, 64)
            results.append((m, next(call["BLOCK"] for call in reversed(raw.launched) if call["x"] is own)))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 1600
    assert all(block == BLOCKS[m % 5] for m, block in results)
    assert bench.opened == 20


def model(tmp_path: Path, kernel: AutotunedKernel, **changes: Any) -> Path:
    """Write a model of the made-up kernel: small blocks pay for every CTA, large ones for every trip."""
    assert kernel.mapping is not None
    forms = tuple(
        FamilyForm(identity, 8, 32, 0, (4.0, 0.0, 0.0, 0.0, 0.5, 0.02 * position, 0.0, 0.0, 0.0))
        for position, identity in enumerate(kernel.candidates)
    )
    fields: dict[str, Any] = {
        "kernel": kernel.name, "dtype": "fp16+fp16", "layout": "", "dims": ("M", "N"), "arch": "nvidia-h200",
        "num_sms": 132, "mapping_digest": mapping_digest(kernel.mapping), "forms": forms, "default_index": 2,
        "exact": {(16, 4096): (4, 12.5)}, "fit_range": {"M": (8, 64), "N": (256, 8192)}, **changes,
    }  # fmt: skip
    path = tmp_path / "models" / "nvidia-h200" / family_file_name(kernel.name, "fp16+fp16")
    write_family(FamilyFile(**fields), path)
    return path


MAPPED = {"grid_size": grid_of, "loop_trips": trips_of}


def test_a_model_answers_without_measuring(make: Callable[..., Made], tmp_path: Path) -> None:
    """Measured keys exactly, others by their forms; the source says which."""
    kernel, raw, bench = make(**MAPPED)
    model(tmp_path, kernel)
    wavetune.clear_caches()
    launch(kernel, m=16)
    launch(kernel, m=12)
    launch(kernel, m=100_000)
    assert bench.opened == 0
    sources_ = [kernel.explain(Tensor(), Tensor(), m, 4096).source for m in (16, 12, 100_000)]
    assert sources_ == [Source.EXACT, Source.NEAREST, Source.MODEL]
    assert raw.blocks()[0] == 256
    launch(kernel, dtype="torch.float32")
    assert bench.opened == 1


def test_beyond_a_model_its_best_few_are_measured(make: Callable[..., Made], tmp_path: Path) -> None:
    """With ``measure``, the top of the ranking and the default compete, nothing else is compiled."""
    wavetune.configure(on_miss="measure", measure_top_k=2)
    kernel, raw, bench = make(best_is(32), **MAPPED)
    model(tmp_path, kernel)
    launch(kernel, m=100_000)
    assert bench.opened == 1
    assert len({compiled["BLOCK"] for compiled in raw.compiled}) == 3
    assert 16 in {compiled["BLOCK"] for compiled in raw.compiled}


def test_a_model_of_another_mapping_is_refused(
    make: Callable[..., Made], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning that names the file and says what has changed; then the next source answers."""
    kernel, _, _ = make(**MAPPED)
    model(tmp_path, kernel)
    changed, _, bench = make(grid_size=grid_of, loop_trips=lambda key, config: 2 * config["BLOCK"] // 16)
    with caplog.at_level(logging.WARNING, "wavetune"):
        launch(changed)
        launch(changed, m=9)
    assert bench.opened == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "mapping_digest" in caplog.text
    assert "made-up-fp16+fp16.json" in caplog.text


def test_a_damaged_model_is_passed_over(
    make: Callable[..., Made], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut, foreign or misplaced files are a warning that names the field."""
    kernel, _, _ = make(**MAPPED)
    cases = (({"arch": "nvidia-h100"}, "arch"), ({"dims": ("N", "M")}, "dims"), ({}, "file"))
    for m, (changes, field) in enumerate(cases, start=1000):
        path = model(tmp_path, kernel, **changes)
        if not changes:
            path.write_bytes(path.read_bytes()[:-40])
        wavetune.clear_caches()
        again, _, bench = make(**MAPPED)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "wavetune"):
            launch(again, m=m)
        assert bench.opened == 1
        assert f"field {field}" in caplog.text


def test_a_pruned_configuration_is_not_the_model_s_answer(make: Callable[..., Made], tmp_path: Path) -> None:
    """What ``early_config_prune`` left out for this key is never launched, whatever the model thinks of it."""
    kernel, raw, _ = make(**MAPPED, prune_configs_by={"early_config_prune": lambda listed, named, **_: listed[:2]})
    model(tmp_path, kernel)
    launch(kernel, m=16)
    assert raw.blocks()[-1] in (16, 32)


def test_explain_neither_measures_nor_launches(make: Callable[..., Made]) -> None:
    """It says what is known now."""
    kernel, raw, bench = make()
    choice = kernel.explain(Tensor(), Tensor(), 8, 4096)
    assert choice.source is Source.DEFAULT
    assert choice.config is kernel.configs[0]
    assert math.isnan(choice.latency_us)
    assert (raw.launched, raw.compiled, bench.opened) == ([], [], 0)


def test_warmup_compiles_without_launching(make: Callable[..., Made]) -> None:
    """All configurations that pruning leaves are compiled, as Triton's tuner does."""
    kernel, raw, _ = make(prune_configs_by={"perf_model": lambda BLOCK, **_: BLOCK, "top_k": 3})
    assert kernel.warmup(Tensor(), Tensor(), 8, 4096, grid=(1,)) == [Compiled()] * 3
    assert raw.launched == []


def test_keys_may_hold_more_than_sizes(make: Callable[..., Made]) -> None:
    """A zero, a word and a boolean in the key are told apart, and stored where they can be."""
    kernel, _, bench = make(key=["M", "N"])
    for m, n in ((0, 4096), (8, True), (8, 1), (8, "wide"), (8, None)):
        launch(kernel, m=m, n=n)
    # True and 1 are equal in Python and share a configuration, as in Triton.
    assert bench.opened == 4
    again, _, bench = make()
    for m, n in ((0, 4096), (8, "wide"), (8, None)):
        launch(again, m=m, n=n)
    assert bench.opened == 0


def test_wrong_declarations_are_refused(make: Callable[..., Made]) -> None:
    """Names that are no arguments, half a mapping, mapping functions without source, an empty list."""
    for options in (
        {"key": ["K"]}, {"restore_value": ["z"]}, {"reset_to_zero": ["M", "o"]}, {"configs": []},
        {"grid_size": grid_of}, {"bytes_moved": grid_of}, {"name": "gemm"},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            make(**options)
    with pytest.raises(MappingError, match="grid_size"):
        make(grid_size=len, loop_trips=trips_of)
    kernel, _, _ = make()
    with pytest.raises(ConfigError, match="BLOCK"):
        launch(kernel, BLOCK=64)


def test_equal_configurations_count_once(make: Callable[..., Made]) -> None:
    """A list that says the same twice is not timed twice."""
    kernel, _, _ = make(blocks=(16, 32, 16))
    assert [config.kwargs["BLOCK"] for config in kernel.configs] == [16, 32]


def test_a_key_is_known_to_calibration_as_to_a_launch(make: Callable[..., Made]) -> None:
    """The problem of a key is the one that launches look up."""
    kernel, _, _ = make(**MAPPED)
    launch(kernel)
    problem, mapping = kernel.describe_key({"M": 8, "N": 4096}, {"x": Tensor(), "y": Tensor(), "M": 8, "N": 4096})
    assert (problem.dims, problem.dtype, mapping.dims) == ((8, 4096), "fp16+fp16", ("M", "N"))
    assert family_source.find_family_model(mapping, problem.dtype, problem.layout, "nvidia-h200") is None
    with pytest.raises(ConfigError, match="grid_size"):
        make()[0].describe_key({}, {})
