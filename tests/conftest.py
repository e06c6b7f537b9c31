"""What every test needs before its first import of torch."""

import os

# The tests' tensors are small: threads cost more than they save, above all where several ranks run.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Nothing here may depend on a network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from hypothesis import settings

from tests.inline import modules_stay_fixture  # noqa: F401 - the autouse fixture `modules_stay`
from tests.ranks import pool_fixture  # noqa: F401 - the fixture `rank_pool`

# The first example of a test may be the one that compiles a kernel, and no test is about time.
settings.register_profile("validator", deadline=None)
settings.load_profile("validator")
