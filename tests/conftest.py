"""Settings of every test run."""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from wavetune.runtime.settings import SETTINGS, configure, reread

# Deadlines measure the machine, not the code: two cores are shared with the rest of the run.
settings.register_profile("wavetune", deadline=None)
settings.load_profile("wavetune")


def pytest_configure(config: pytest.Config) -> None:
    """Give a process one thread, before NumPy counts the cores: on two cores, those of two workers wait for each other.

    It also decides the last bits of a fit.
    """
    if config.option.markexpr != "gpu":
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests out unless they are asked for."""
    if "slow" in config.option.markexpr:
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="takes long; run with -m slow"))


@pytest.fixture(autouse=True)
def fresh_settings() -> Iterator[None]:
    """Read the environment afresh in every test, and leave nothing configured and no log shown."""
    reread()
    logger = logging.getLogger("wavetune")
    # The command line shows the log, and fixtures that outlive a test run commands.
    logger.handlers[:] = [handler for handler in logger.handlers if isinstance(handler, logging.NullHandler)]
    yield
    configure(**dict.fromkeys(setting.name for setting in SETTINGS))
    reread()
