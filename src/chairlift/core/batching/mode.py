"""What a batching mode has to decide.

Knows nothing of how it decides.
"""

from typing import ClassVar, Protocol

from chairlift.core.request import Request
from chairlift.core.state import SchedulerState
from chairlift.core.step_draft import StepDraft


class BatchingMode(Protocol):
    """Fills steps. May keep state of its own between steps."""

    shares_prefixes: ClassVar[bool]
    """Whether the prefix tree makes sense in this mode."""

    def __init__(self, state: SchedulerState) -> None: ...

    def compose(self, draft: StepDraft) -> bool:
        """Fill the draft with everything but decodes of the standing set, which follow from the set itself.

        Returns:
            False if the step cannot be planned before a step in flight is committed; nothing has changed then.
        """
        ...

    def end(self, request: Request) -> None:
        """A finished or aborted request was taken out of the queues: end its row now, or let it go on."""
        ...

    def keeps_row(self, request: Request) -> bool:
        """Whether the row of this running request goes on executing after it finishes."""
        ...
