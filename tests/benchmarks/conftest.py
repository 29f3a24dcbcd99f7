"""The benchmarks are in the source tree only; the tests of an installed wheel run without them."""

import importlib.util
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
BENCHMARKS = TESTS.parent / "benchmarks"

if BENCHMARKS.is_dir() and importlib.util.find_spec("triton") is not None:
    sys.path.append(str(BENCHMARKS))
    # Made-up GPUs and tables that other tests have.
    sys.path.extend(str(TESTS / folder) for folder in ("fit", "pipeline", "report"))
else:
    collect_ignore_glob = ["test_*.py"]
