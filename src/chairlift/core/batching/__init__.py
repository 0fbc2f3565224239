"""The two ways to fill a step: continuous, and static for comparison.

Knows nothing of executors; each mode turns the scheduler's state into the decisions of one step.
"""

from chairlift.core.batching.continuous import ContinuousBatching
from chairlift.core.batching.mode import BatchingMode
from chairlift.core.batching.static import StaticBatching

BATCHING: dict[str, type[BatchingMode]] = {"continuous": ContinuousBatching, "static": StaticBatching}
