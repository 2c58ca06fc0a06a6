"""What every test run shares."""

import os

from hypothesis import settings

# The same cases on every run: a change must not fail for a case that it did not touch. To look for
# new ones: HYPOTHESIS_PROFILE=search pytest ...
settings.register_profile("steady", derandomize=True)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
