"""Calibrating a kernel of the user's: its keys, and the runner that measures them, on a made-up device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from made_up_kernel import MadeUpBench, MadeUpKernel  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402

import wavetune  # noqa: E402
from wavetune.core.arch import find_arch  # noqa: E402
from wavetune.errors import ConfigError, MeasurementError, RunnerError  # noqa: E402
from wavetune.launch.autotune import AutotunedKernel, autotune  # noqa: E402
from wavetune.launch.autotune import bench as bench_module  # noqa: E402
from wavetune.launch.autotune import runner as runner_module  # noqa: E402
from wavetune.launch.autotune.keys import KeyGroup, group_keys, read_keys  # noqa: E402
from wavetune.launch.autotune.runner import KernelRunner  # noqa: E402
from wavetune.measure.runner import Runner  # noqa: E402
from wavetune.pipeline.family_calibration import calibrate_family  # noqa: E402
from wavetune.pipeline.user_kernel import KernelJob  # noqa: E402
from wavetune.runtime.choice import Source  # noqa: E402
from wavetune.runtime.family_file import family_file_name, write_family  # noqa: E402
from wavetune.store.database import MeasurementStore  # noqa: E402
from wavetune.store.record import Point, Status  # noqa: E402

H200 = find_arch("h200")
BLOCKS = (64, 16, 32, 128, 256)
RANGES = {"M": (1, 4096), "N": (64, 8192)}


def make_args(key: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments: small tensors, whatever the key says."""
    x = torch.arange(12.0)
    return {"x": x, "y": torch.zeros_like(x), "M": key["M"], "N": key["N"]}


def latency_us(launch: Mapping[str, Any]) -> float:
    """Return the latency of a row sum: waves of CTAs that loop over N, larger blocks being better at it."""
    ctas, trips = launch["M"], -(-launch["N"] // launch["BLOCK"])
    waves = -(-ctas // (132 * 16))
    return 4.0 + 0.2 * waves * trips * (0.3 + launch["BLOCK"] / 64) + 0.002 * launch["BLOCK"] * waves


def compute(arguments: Mapping[str, Any]) -> None:
    """Do what the kernel is for."""
    arguments["y"].copy_(arguments["x"] * 2.0)


Made = tuple[AutotunedKernel, MadeUpKernel, MadeUpBench]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Return a maker of kernels on a made-up H200."""
    monkeypatch.setattr(runner_module, "require_whole_gpu", lambda arch, gpu: None)
    wavetune.configure(cache_dir=tmp_path / "cache", models=[tmp_path / "models"])

    def build(effect: Any = compute, refuse: Any = None, **options: Any) -> Made:
        raw = MadeUpKernel(effect, refuse)
        bench = MadeUpBench(raw, latency_us)
        monkeypatch.setattr(bench_module, "_BENCH", bench)
        fields = {
            "configs": [triton.Config({"BLOCK": block}, num_warps=4, num_stages=1) for block in BLOCKS],
            "key": ["M", "N"], "name": "made-up", "grid_size": lambda key, config: key["M"],
            "loop_trips": lambda key, config: -(-key["N"] // config["BLOCK"]), "make_args": make_args,
            "calibration_keys": RANGES, **options,
        }  # fmt: skip
        return autotune(**fields)(raw), raw, bench

    yield build
    wavetune.configure(cache_dir=None, models=None)


def runner_of(group: KeyGroup) -> KernelRunner:
    """Return the runner of a group of keys."""
    return KernelRunner(group.kernel, H200, group.key_of, group.probe())


def test_configurations_are_compiled_and_compared(made: Any) -> None:
    """Those that do not fit, and those whose result is another one, are failures with a reason."""

    def refuse(options: Mapping[str, Any]) -> Exception | None:
        return OutOfResources(9, 1, "shared memory") if options["BLOCK"] == 128 else None

    def effect(arguments: Mapping[str, Any]) -> None:
        compute(arguments)
        if arguments["BLOCK"] == 32:
            arguments["y"][3] += 5.0
        if arguments["BLOCK"] == 256:
            arguments["y"][0] = float("nan")

    kernel, _, _ = made(effect, refuse)
    (group,) = group_keys(kernel)
    runner = runner_of(group)
    assert isinstance(runner, Runner)
    progress: list[tuple[int, int]] = []
    prepared = runner.prepare(kernel.candidates, lambda done, total: progress.append((done, total)))
    assert [entry.config["BLOCK"] for entry in prepared.compiled] == [64, 16]
    assert {(entry.num_regs, entry.num_spills, entry.smem_bytes) for entry in prepared.compiled} == {(32, 0, 1024)}
    failures = {failure.config["BLOCK"]: failure for failure in prepared.failures}
    assert {block: failure.status for block, failure in failures.items()} == {
        128: Status.OUT_OF_RESOURCES, 32: Status.WRONG_RESULT, 256: Status.WRONG_RESULT
    }  # fmt: skip
    assert "shared memory" in failures[128].detail
    assert progress[-1] == (5, 5)


def test_in_place_results_are_compared_from_the_same_start(made: Any) -> None:
    """A kernel that adds to its output is right with every configuration, and finds its arguments as they were."""

    def effect(arguments: Mapping[str, Any]) -> None:
        arguments["y"].add_(arguments["x"])

    kernel, _, _ = made(effect)
    (group,) = group_keys(kernel)
    assert len(runner_of(group).prepare(kernel.candidates).compiled) == len(BLOCKS)


def test_points_are_timed_key_by_key(made: Any) -> None:
    """One measurement a point, in the block's order, with the grid that the mapping says."""
    kernel, raw, bench = made()
    (group,) = group_keys(kernel)
    runner = runner_of(group)
    probe = group.probe()
    points = [
        Point(type(probe)(probe.kernel, dims, probe.dtype), config, "s")
        for dims in ((7, 640), (300, 64))
        for config in kernel.candidates
    ]
    results = list(runner.measure(points))
    assert [(result.problem, result.config) for result in results] == [(p.problem, p.config) for p in points]
    assert all(result.status is Status.OK and result.rounds >= 3 for result in results)
    for result in results:
        m, n = result.problem.dims
        assert result.latency_us == pytest.approx(latency_us({"M": m, "N": n, "BLOCK": result.config["BLOCK"]}))
    assert set(raw.grids) == {(7,), (300,)}
    assert bench.opened == 1


def test_a_calibrated_kernel_launches_by_its_model(made: Any, tmp_path: Path) -> None:
    """From keys to a model to launches of keys that were never measured, none of which is timed."""
    kernel, raw, bench = made()
    (group,) = group_keys(kernel)
    runner, probe = runner_of(group), group.probe()
    from wavetune.mapping.source_digest import mapping_digest

    job = KernelJob(
        kernel.name, probe.dtype, probe.layout, group.names, tuple(kernel.candidates), group.shaper(),
        mapping_digest(kernel.mapping), group.pool,
    )  # fmt: skip
    environment = {"gpu_name": "made up", "triton": triton.__version__}
    with MeasurementStore(tmp_path / "kernel.sqlite", environment) as store:
        result = calibrate_family(runner, job, store)
    assert result.fitted.held_out is not None
    assert result.fitted.held_out.efficiency.geomean > 0.99
    write_family(result.file, tmp_path / "models" / "nvidia-h200" / family_file_name(kernel.name, probe.dtype))
    wavetune.clear_caches()
    opened = bench.opened
    chosen, best = [], []
    for m, n in ((3, 5000), (2000, 100), (4000, 777), (150, 3333)):
        kernel[(m,)](torch.ones(3), torch.ones(3), m, n)
        chosen.append(latency_us(raw.launched[-1]))
        best.append(min(latency_us({"M": m, "N": n, "BLOCK": block}) for block in BLOCKS))
        assert kernel.explain(torch.ones(3), torch.ones(3), m, n).source is Source.NEAREST
    assert bench.opened == opened
    assert chosen == pytest.approx(best, rel=0.02)


def test_mistakes_of_make_args_and_launches_are_named(made: Any) -> None:
    """The kernel, the key and the message; never a bare traceback."""

    def broken(key: Mapping[str, Any]) -> dict[str, Any]:
        raise KeyError("rows")

    kernel, _, _ = made(make_args=broken)
    (group,) = group_keys(kernel)
    with pytest.raises(RunnerError, match=r"make_args of kernel made-up fails for key .*KeyError: 'rows'"):
        group.probe()

    def fail(arguments: Mapping[str, Any]) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    kernel, _, _ = made(fail)
    (group,) = group_keys(kernel)
    with pytest.raises(RunnerError, match=r"a launch of kernel made-up .*illegal memory access"):
        runner_of(group).prepare(kernel.candidates)


def test_keys_of_one_model_differ_in_sizes_only(made: Any) -> None:
    """Other entries make other groups; sweep keys join their pool."""
    keys = [{"M": m, "N": n} for m in (1, 2) for n in (64, True)] + [{"M": 1, "N": 64}]
    kernel, _, _ = made(calibration_keys=keys)
    groups = group_keys(kernel, [{"M": 9, "N": 64}])
    assert [(group.names, dict(group.rest)) for group in groups] == [(("M", "N"), {}), (("M",), {"N": True})]
    assert groups[0].pool == [(1, 64), (2, 64), (9, 64)]
    assert groups[0].sweep == [(9, 64)]
    assert groups[1].key_of((2,)) == {"M": 2, "N": True}


def test_what_calibration_lacks_is_named(made: Any) -> None:
    """Mapping, arguments, keys, ranges, entries."""
    for options, missing in (
        ({"grid_size": None, "loop_trips": None}, "grid_size"), ({"make_args": None}, "make_args"),
        ({"calibration_keys": None}, "no keys"), ({"calibration_keys": {"M": (1, 5)}}, "range of N"),
        ({"calibration_keys": {"M": (1, 5), "N": (9, 3)}}, "range of N"), ({"calibration_keys": [{"M": 1}]}, "M, N"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=missing):
            group_keys(made(**options)[0])


def test_keys_are_read_from_files(tmp_path: Path) -> None:
    """CSV and JSON; more columns than needed are fine, fewer are not."""
    path = tmp_path / "keys"
    path.write_text("M,N,note\n5,64,a\n6, True ,b\n")
    assert read_keys(path, ["M", "N"]) == [{"M": 5, "N": 64}, {"M": 6, "N": True}]
    path.write_text('[{"N": 64, "M": 5}]')
    assert read_keys(path, ["M", "N"]) == [{"M": 5, "N": 64}]
    for text, message in (
        ("M\n5\n", "key 1 has no N"), ("M,N\n", "no keys"), ('[{"M": 1}]', "no N"), ("[1", "not JSON"), ("[3]", "no M")
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(MeasurementError, match=message):
            read_keys(path, ["M", "N"])
    with pytest.raises(MeasurementError, match="cannot read"):
        read_keys(tmp_path / "none", ["M"])
