"""Settings of every test run."""

from hypothesis import settings

# Deadlines measure the machine, not the code: two cores are shared with the rest of the run.
settings.register_profile("wavetune", deadline=None)
settings.load_profile("wavetune")
