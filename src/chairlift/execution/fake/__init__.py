"""A toy model without tensors, for tests and for trying a server out.

Knows nothing of language.
"""

from chairlift.execution.fake.executor import FakeExecutor
from chairlift.execution.fake.model import next_token, reference_output

__all__ = ["FakeExecutor", "next_token", "reference_output"]
