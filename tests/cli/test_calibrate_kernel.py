"""``wavetune calibrate --kernel package.module:name``, as far as it goes without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_shell import Result

pytest.importorskip("triton")

KERNEL = """
import triton
import triton.language as tl

from wavetune.launch.autotune import autotune


@autotune(
    configs=[triton.Config({"BLOCK": block}, num_warps=4) for block in (64, 128)],
    key=["M", "N"],
    grid_size=lambda key, config: key["M"],
    loop_trips=lambda key, config: -(-key["N"] // config["BLOCK"]),
    make_args=lambda key: {"x": None, "M": key["M"], "N": key["N"]},
    calibration_keys={"M": (1, 100), "N": (64, 640)},
    name="row-sum",
)
@triton.jit
def row_sum(x, M, N, BLOCK: tl.constexpr):
    pass


@triton.jit
def plain(x):
    pass
"""

HELD_OUT = {
    "shapes": 12, "efficiency": {"geomean": 0.98, "p5": 0.95, "min": 0.9}, "regret": {"mean": 0.02},
    "top3_efficiency": 0.99, "top8_efficiency": 1.0, "mape_chosen": 0.02, "mape_near_best": 0.03,
    "default_efficiency": {"geomean": None},
}  # fmt: skip

Cli = Callable[..., Result]


@pytest.fixture
def module(tmp_path: Path) -> Iterator[str]:
    """Return the name of a module in the working directory."""
    import sys

    name = f"kernels_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(KERNEL)
    path = list(sys.path)
    yield name
    sys.path[:] = path
    sys.modules.pop(name, None)


def test_the_plan_needs_no_gpu(cli: Cli, module: str) -> None:
    """Keys, configurations, points and the range of grids, as text and as JSON."""
    result = cli("calibrate", "--kernel", f"{module}:row_sum", "--arch", "h200", "--dry-run", "--json")
    assert result.code == 0, result.stderr
    (plan,) = result.json
    assert (plan["kernel"], plan["sizes"], plan["configs"], plan["swept_keys"]) == ("row-sum", "M, N", 2, 12)
    assert (plan["smallest_grid"], plan["largest_grid"]) == (1, 100)
    assert plan["points"] == 2 * (12 + 32)
    text = cli("calibrate", "--kernel", f"{module}:row_sum", "--arch", "h200", "--dry-run")
    assert "row-sum" in text.stdout


def test_keys_of_a_file_are_swept(cli: Cli, module: str, tmp_path: Path) -> None:
    """They are counted, and a file without them is refused by name."""
    keys = tmp_path / "keys.csv"
    keys.write_text("M,N\n5,64\n6,128\n7,640\n")
    command = ("calibrate", "--kernel", f"{module}:row_sum", "--arch", "h200", "--dry-run", "--json", "--keys", keys)
    assert cli(*command).json[0]["swept_keys"] == 3
    keys.write_text("M\n5\n")
    result = cli(*command)
    assert (result.code, "key 1 has no N" in result.stderr) == (3, True)


def test_without_a_gpu_it_says_so(cli: Cli, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One error that names what is missing and what can be done without."""
    from wavetune.errors import RunnerError
    from wavetune.measure import environment

    def no_driver(gpu: int = 0) -> str:
        raise RunnerError("no NVIDIA driver answers")

    monkeypatch.setattr(environment, "device_name", no_driver)
    result = cli("calibrate", "--kernel", f"{module}:row_sum", "--arch", "h200")
    assert result.code == 3
    assert "no NVIDIA driver answers" in result.stderr
    assert "--dry-run" in result.stderr


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_such_module_here:kernel", "cannot import no_such_module_here"), ("{module}:nothing", "is nothing"),
        ("{module}:plain", "decorated with wavetune.autotune"), (":kernel", "package.module:name"),
        ("{module}:", "package.module:name"),
    ],
)  # fmt: skip
def test_a_wrong_kernel_is_named(cli: Cli, module: str, reference: str, message: str) -> None:
    """Modules that cannot be imported, names that are no kernels."""
    result = cli("calibrate", "--kernel", reference.format(module=module), "--arch", "h200")
    assert result.code == 3
    assert message in result.stderr


def test_options_of_families_do_not_mix(cli: Cli, module: str, tmp_path: Path) -> None:
    """A replay is of a family, keys are of a kernel of the user's: a usage error says which option to give."""
    (tmp_path / "f.csv").write_text("M,N\n5,64\n")
    own = cli("calibrate", "--kernel", f"{module}:row_sum", "--arch", "h200", "--replay", "f.csv")
    family = cli("calibrate", "--arch", "h200", "--keys", "f.csv")
    assert (own.code, family.code) == (2, 2)


def test_models_of_kernels_are_listed_shown_and_verified(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside those of families, and a damaged one by its field."""
    from wavetune import clear_caches
    from wavetune.core.config import KernelConfig
    from wavetune.runtime.family_file import FamilyFile, FamilyForm, write_family

    path = tmp_path / "own" / "nvidia-h200" / "row-sum-fp16.json"
    form = FamilyForm(KernelConfig(BLOCK=64, num_warps=4, num_stages=1), 8, 32, 0, (3.0,) * 9)
    write_family(
        FamilyFile("row-sum", "fp16", "", ("M",), "nvidia-h200", 132, "sha256:1", (form,), 0, {(5,): (0, 4.5)},
                   {"M": (1, 9)}, accuracy={"relative_error": 0.02, "held_out": HELD_OUT}),
        path,
    )  # fmt: skip
    monkeypatch.setenv("WAVETUNE_MODELS", str(tmp_path / "own"))
    clear_caches()
    listed = next(entry for entry in cli("models", "list", "--json").json if entry["kernel"] == "row-sum")
    assert (listed["configs"], listed["exact"], listed["held_out_efficiency"]) == (1, 1, 0.98)
    shown = cli("models", "show", "h200/row-sum-fp16", "--json").json
    assert shown["forms"][0]["coefficients"]["bytes"] == 3.0
    text = cli("models", "show", "h200/row-sum-fp16").stdout
    assert "BLOCK=64" in text
    assert "12 shapes at 98.0% of the best" in text
    assert cli("models", "verify", path).code == 0
    path.write_text(path.read_text().replace("4.5", "4.6"))
    broken = cli("models", "verify", path)
    assert (broken.code, "digest" in broken.stdout) == (3, True)
