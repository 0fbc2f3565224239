"""What is asked of a running engine beside generating: explanations, lists, and settings to read and to change.

Knows nothing of prompts. All of it lives in one event loop.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from chairlift.config.changes import changes_again, settings_in_force
from chairlift.config.resolved import TenantTable
from chairlift.config.sections import QueueSettings
from chairlift.engine.messages import (
    CacheReset,
    Configure,
    Configured,
    Explain,
    Explained,
    Inbound,
    Listed,
    ListRequests,
    RequestStatus,
    ResetPrefixCache,
)
from chairlift.errors import EngineUnavailableError, InvalidRequestError
from chairlift.observability.logging import format_fields
from chairlift.observability.recorder import Recorder

_AGAIN = -1
"""Number of the question that nobody asked: settings of before a restart are set again."""

_MAX_ASKED = 8
"""Questions about requests that wait in the engine at a time; further ones wait in this process."""

_Question = Explain | ListRequests | Configure

_logger = logging.getLogger(__name__)


class Questions:
    """Puts questions to the engine process and matches its answers; each has a number.

    Args:
        send: sends a message; raises ``EngineUnavailableError`` if there is no engine.
        recorder: is told which tenants there are.
        configured: tenants that a fresh engine process is told of at its birth.
        queue: the queue's settings that it is told of.
    """

    def __init__(
        self, send: Callable[[Inbound], None], recorder: Recorder, configured: Iterable[str], queue: QueueSettings
    ) -> None:
        self._send = send
        self._recorder = recorder
        self._configured = tuple(configured)
        self._queue = queue
        self._numbers = itertools.count()
        self._turn = asyncio.Semaphore(_MAX_ASKED)
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._resets: list[asyncio.Future[bool]] = []
        self._changed: set[str] = set()
        self._in_force: Configured | None = None

    @property
    def queue(self) -> QueueSettings:
        """The queue's settings that are in force."""
        return self._queue

    async def explain(self, request_ids: Sequence[int]) -> Sequence[RequestStatus | None]:
        """Say of each choice what it waits for; ``None`` for those that are not alive.

        Raises:
            EngineUnavailableError: the engine process is down, or goes down meanwhile.
        """
        async with self._turn:
            answer: Explained = await self._ask(lambda number: Explain(number, tuple(request_ids)))
        return answer.statuses

    async def list_requests(self, limit: int) -> Listed:
        """Say who runs and who is first in the queue, at most so many of each.

        Raises:
            EngineUnavailableError: the engine process is down, or goes down meanwhile.
        """
        async with self._turn:
            return await self._ask(lambda number: ListRequests(number, limit))

    async def configure(self, changes: Mapping[str, object]) -> Mapping[str, object]:
        """Change settings, all or none, and return every changeable one as it is now; without changes only ask.

        What was changed holds after a restart of the engine process too.

        Raises:
            InvalidRequestError: a change is not possible; nothing was changed.
            EngineUnavailableError: the engine process is down, or goes down meanwhile.
        """
        before: Configured = self._in_force or await self._ask(Configure)
        answer: Configured = await self._ask(lambda number: Configure(number, dict(changes)))
        if answer.error is not None:
            raise InvalidRequestError(answer.error)
        self._take_configuration(answer, is_new=bool(changes))
        self._changed.update(changes)
        was = settings_in_force(before.scheduler, before.queue)
        now = settings_in_force(answer.scheduler, answer.queue)
        for name in (name for name in changes if was[name] != now[name]):
            _logger.info("%s", format_fields(changed=name, before=was[name], now=now[name]))
        return now

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, and nothing done, while any request is alive.

        Raises:
            EngineUnavailableError: the engine process is down.
        """
        self._send(ResetPrefixCache())
        reset: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._resets.append(reset)
        return await reset

    def answered(self, message: Explained | Listed | Configured | CacheReset) -> None:
        """An answer came."""
        if isinstance(message, CacheReset):
            self._settle_reset(done=message.done)
            return
        if isinstance(message, Configured) and message.question == _AGAIN:
            if message.error is not None:
                _logger.error("settings changed at run time could not be set again: %s", message.error)
            self._take_configuration(message, is_new=False)
            return
        question = self._open.get(message.question)
        if question is not None and not question.done():
            question.set_result(message)

    def engine_lost(self, message: str) -> None:
        """Nobody answers any more what was asked so far."""
        for question in self._open.values():
            if not question.done():
                question.set_exception(EngineUnavailableError(message))
        while self._resets:
            self._settle_reset(done=False)

    def engine_ready(self) -> None:
        """A fresh engine process serves: before anything else it gets the settings that were changed at run time."""
        if self._changed and self._in_force is not None:
            now = self._in_force
            self._send(Configure(_AGAIN, changes_again(self._changed, now.scheduler, now.queue, self._configured)))

    def _settle_reset(self, *, done: bool) -> None:
        reset = self._resets.pop(0)
        if not reset.done():
            reset.set_result(done)

    async def _ask(self, make: Callable[[int], _Question]) -> Any:
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[number] = answer
        try:
            self._send(make(number))
            return await answer
        finally:
            del self._open[number]

    def _take_configuration(self, message: Configured, *, is_new: bool) -> None:
        self._in_force = message
        self._queue = message.queue
        scheduler = message.scheduler
        tenants = TenantTable(by_name=scheduler.tenants, default=scheduler.default_tenant)
        self._recorder.reconfigured(tenants, is_new=is_new)
