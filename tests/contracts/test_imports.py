"""What may import what: the runtime is standard library only, heavy packages stay in their layers."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import wavetune

ROOT = Path(__file__).resolve().parents[2]
# Of the checkout or of the installed wheel: whatever is under test.
PACKAGE = Path(wavetune.__file__).resolve().parent
MODULES = sorted(PACKAGE.rglob("*.py"))
STANDARD_LIBRARY_LAYERS = ("core", "mapping", "waves", "runtime", "errors.py", "__init__.py", "__main__.py")
GPU_FILES = {
    "check_choices.py", "compile.py", "contest_runner.py", "cublaslt.py", "cublaslt_contest.py", "cuda_timing.py",
    "environment.py", "gpu_session.py", "isolation.py", "timing.py", "triton_runner.py", "validate.py",
}  # fmt: skip


def imported(path: Path, *, top_level_only: bool = False) -> Iterator[tuple[str, int]]:
    """Yield the top-level name and line of every package that a module imports, anywhere in it."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0], node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            yield from ((str(a.value).split(".")[0], node.lineno) for a in node.args[:1] if isinstance(a, ast.Constant))


def layer_of(path: Path) -> str:
    """Return the layer that a module belongs to."""
    return path.relative_to(PACKAGE).parts[0]


def test_the_first_answer_loads_the_standard_library_only() -> None:
    """Importing the package and choosing once loads nothing but the standard library and wavetune."""
    program = (
        "import sys; before = set(sys.modules); import wavetune; "
        "wavetune.choose_config(512, 4096, 4096, arch='h200'); wavetune.explain_choice(5, 64, 64, arch='h200'); "
        "print(*sorted(set(sys.modules) - before))"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WAVETUNE_")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "wavetune" in loaded
    assert loaded - {"wavetune"} <= set(sys.stdlib_module_names)
    layers = {name.split(".")[1] for name in done.stdout.split() if name.startswith("wavetune.")}
    assert layers <= {"core", "mapping", "waves", "runtime", "errors"}


def test_every_name_of_the_package_resolves() -> None:
    """Names in ``__all__``, lazy ones too, resolve; others raise AttributeError."""
    import wavetune

    for name in wavetune.__all__:
        assert getattr(wavetune, name) is not None
    assert set(wavetune.__all__) <= set(dir(wavetune))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = wavetune.no_such_name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_packages_stay_in_their_layers(path: Path) -> None:
    """Torch, triton, scipy, scikit-learn and numpy are imported in their own layers only."""
    layer = layer_of(path)
    allowed_anywhere = set(sys.stdlib_module_names) | {"wavetune"}
    third_party = {name for name, _ in imported(path)} - allowed_anywhere
    if path.relative_to(PACKAGE).as_posix() == "runtime/nvml.py":
        # The driver is asked through nvidia-ml-py, where it is installed and only when it is needed.
        assert third_party == {"pynvml"}
        assert "pynvml" not in {name for name, _ in imported(path, top_level_only=True)}
        return
    if layer in STANDARD_LIBRARY_LAYERS:
        assert not third_party
    gpu = layer in ("kernels", "launch", "recording") or (layer == "measure" and path.name in GPU_FILES)
    if not gpu:
        assert not third_party & {"torch", "triton", "pynvml"}
    if layer not in ("fit", "report"):
        assert not third_party & {"scipy", "sklearn"}
    if layer != "cli":
        assert not third_party & {"typer", "rich", "click"}
    if layer != "report":
        assert not third_party & {"plotly", "jinja2"}
    offline = {"numpy", "scipy", "sklearn", "threadpoolctl", "joblib", "plotly", "jinja2"}
    # The extra `cublaslt`: bindings of a library that is asked on a GPU only.
    bindings = {"nvmath"} if path.name == "cublaslt.py" else set()
    assert third_party <= offline | bindings | {"torch", "triton", "pynvml", "typer", "rich", "click"}


def test_what_is_loaded_into_other_programs_needs_nothing() -> None:
    """Recorders run where neither wavetune nor torch may be: they import the standard library, and torch when asked."""
    paths = [path for path in MODULES if layer_of(path) == "recording"]
    assert len(paths) > 3
    for path in paths:
        assert {name for name, _ in imported(path, top_level_only=True)} <= set(sys.stdlib_module_names)
        assert {name for name, _ in imported(path)} <= {*sys.stdlib_module_names, "torch"}


def test_torch_is_never_needed_to_import_the_offline_package() -> None:
    """Every module outside of the GPU layers imports without torch."""
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in MODULES
        if layer_of(path) not in ("kernels", "launch", "cli", "__main__.py")
        and not (layer_of(path) == "measure" and path.name in GPU_FILES)
        # Importing it runs the user's own one again.
        and path.name != "sitecustomize.py"
    ]
    assert len(names) > 40
    program = (
        "import importlib, sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch': raise ImportError('no torch here')\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        f"[importlib.import_module(name) for name in {names}]\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_layers_hold() -> None:
    """The import-linter contracts of pyproject.toml hold."""
    tool = shutil.which("lint-imports", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if tool is None:
        pytest.skip("import-linter is a development tool, not a test dependency")
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", done.stdout)
