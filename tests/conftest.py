"""Hypothesis profiles (quick for a developer, repeatable in CI, long on request), and patience."""

import os

import httpx
from hypothesis import HealthCheck, settings

from tests.support.patience import PATIENCE_S

_SLOW_MACHINE = [HealthCheck.too_slow]
settings.register_profile("dev", deadline=None, suppress_health_check=_SLOW_MACHINE)
settings.register_profile(
    "ci", deadline=None, derandomize=True, suppress_health_check=_SLOW_MACHINE, print_blob=True
)
settings.register_profile(
    "soak", deadline=None, max_examples=5000, suppress_health_check=_SLOW_MACHINE
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "dev"))

# httpx gives up after five seconds if it is told nothing, and a busy machine can take longer.
for _what in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _what, PATIENCE_S)
