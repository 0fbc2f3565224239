"""Who loses its pages when a running request needs one and none is left.

Knows nothing of what happens to the victim.
"""

from collections.abc import Sequence
from typing import Protocol

from chairlift.core.views import RequestView


class PreemptionPolicy(Protocol):
    """Chooses a victim."""

    def choose(self, running: Sequence[RequestView]) -> RequestView:
        """Return one of ``running`` (never empty), which are in the order in which they were admitted."""
        ...


class LastAdmitted:
    """The least urgent tier's most recently admitted request, as vLLM does within a tier."""

    def choose(self, running: Sequence[RequestView]) -> RequestView:
        """Take the last admitted of the highest tier number."""
        return max(enumerate(running), key=lambda pair: (pair[1].priority, pair[0]))[1]
