"""Works on batches, one after the other, while the server runs; what was left undone goes on after a restart.

Knows nothing of HTTP.

::

    validating -> in_progress -> finalizing -> completed | expired
         |              |  cancelling ...   -> cancelled
         +--------------+-> failed: a line is wrong, or there is no room for results

One batch has its turn, which only a window that ends while the batch waits does without: there is nothing to run then.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from fastapi import FastAPI

from chairlift.config.sections import BatchSettings
from chairlift.errors import DrainingError
from chairlift.server.batches.calls import call, caller_of_batch
from chairlift.server.batches.lines import Line, LineLimits, find_lines, read_request
from chairlift.server.batches.objects import Batch, BatchError, BatchErrors, StoredBatch
from chairlift.server.batches.results import expired_line, find_done, result_line
from chairlift.server.batches.shelves import StorageFullError
from chairlift.server.batches.store import BatchStore, now_s
from chairlift.server.context import ServerContext
from chairlift.server.workers import in_worker

logger = logging.getLogger(__name__)

_BAD_REQUEST = 400
_DISK_RETRY_S = 30.0
_EXPIRED_AT_A_TIME = 1000


class BatchRunner:
    """Runs in the server's event loop until it is cancelled.

    Args:
        app: what answers the requests.
        store: where batches are.
        settings: have the caps.
        clock: Unix time in seconds.
    """

    def __init__(
        self, app: FastAPI, store: BatchStore, settings: BatchSettings, clock: Callable[[], int] = now_s
    ) -> None:
        self._app = app
        self._store = store
        self._settings = settings
        self._now_s = clock
        self._changed = asyncio.Event()
        self._windows_changed = asyncio.Event()
        self._working: set[str] = set()
        self._is_draining = False
        self._reading = asyncio.Lock()

    def notice(self) -> None:
        """There is a new batch, or time has passed."""
        self._changed.set()
        self._windows_changed.set()

    async def cancel(self, stored: StoredBatch) -> None:
        """End a batch that has not ended: at once if nothing of it was done, or else when what runs has stopped."""
        batch = stored.batch
        batch.status, batch.cancelling_at = "cancelling", self._now_s()
        if batch.in_progress_at is None and batch.id not in self._working:
            batch.status, batch.cancelled_at = "cancelled", self._now_s()
        self.notice()
        await self._store.save(stored)

    async def run(self) -> None:
        """Work for ever."""
        watching = asyncio.ensure_future(self._watch_windows())
        try:
            await self._take_turns()
        except DrainingError:
            pass  # goes on after the next start
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _take_turns(self) -> None:
        while True:
            self._changed.clear()
            stored = self._store.find_next_batch(self._working)
            if stored is None:
                await self._changed.wait()
            else:
                await self._work_on(stored)

    async def _watch_windows(self) -> None:
        """End the batches that wait when their windows do."""
        while True:
            self._windows_changed.clear()
            waiting = [one for one in self._store.open_batches() if one.batch.id not in self._working]
            first = min(waiting, key=lambda one: one.batch.expires_at, default=None)
            if first is not None and self._has_window_ended(first.batch):
                await self._work_on(first)
                continue
            left_s = None if first is None else first.batch.expires_at - self._now_s()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._windows_changed.wait(), left_s)

    async def _work_on(self, stored: StoredBatch) -> None:
        """Bring a batch to its end, or say why that cannot be, and wait before anybody tries again."""
        self._working.add(stored.batch.id)
        try:
            await self._bring_to_end(stored)
        except OSError:
            logger.exception(
                "%s cannot go on: the folder of --batch-dir does not work; trying again later", stored.batch.id
            )
            await asyncio.sleep(_DISK_RETRY_S)
        finally:
            self._working.discard(stored.batch.id)
            self.notice()

    async def _bring_to_end(self, stored: StoredBatch) -> None:
        batch = stored.batch
        try:
            if batch.finalizing_at is None:
                await self._answer(stored)
        except StorageFullError as error:
            batch.errors = BatchErrors([BatchError(error.message, code="storage_full")])
        except (DrainingError, OSError):
            raise
        except Exception:
            # One batch that cannot be worked on must not hold up all others for ever.
            logger.exception("batch %s failed", batch.id)
            batch.errors = BatchErrors([BatchError("internal error", code="internal_error")])
        await self._finish(stored)

    async def _answer(self, stored: StoredBatch) -> None:
        """Check all lines, and answer those that have no answer yet."""
        batch = stored.batch
        found = await asyncio.to_thread(self._find_lines, stored)
        errors = [one for one in found if isinstance(one, BatchError)]
        if errors:
            batch.errors = BatchErrors(errors)
            return
        lines = [one for one in found if isinstance(one, Line)]
        undone = await self._find_undone(stored, lines)
        if not self._has_window_ended(batch):
            if batch.status == "validating":
                batch.status, batch.in_progress_at = "in_progress", self._now_s()
            await self._store.save(stored)
            if batch.status == "in_progress":
                await self._run_lines(stored, undone)
            await self._store.settle()
            counts = batch.request_counts
            if counts.completed + counts.failed >= counts.total:
                return
            undone = await self._find_undone(stored, lines)
        if batch.status != "cancelling" and undone:
            await self._expire(stored, undone)

    async def _find_undone(self, stored: StoredBatch, lines: Sequence[Line]) -> list[Line]:
        """The lines without a result; the others are counted."""
        await self._store.settle()
        results = [self._store.results_path(stored.batch, is_error=is_error) for is_error in (False, True)]
        completed, failed = [await asyncio.to_thread(find_done, path) for path in results]
        counts, done = stored.batch.request_counts, completed | failed
        counts.total, counts.completed, counts.failed = len(lines), len(completed), len(failed)
        return [line for line in lines if line.custom_id not in done]

    async def _expire(self, stored: StoredBatch, undone: Sequence[Line]) -> None:
        """Give all lines without a result that of having come too late."""
        batch, shelf = stored.batch, self._store.shelf(stored.owner)
        if batch.expired_at is None:
            batch.expired_at = self._now_s()
        await self._store.save(stored)  # whoever goes on after a crash knows why these lines have results
        for place in range(0, len(undone), _EXPIRED_AT_A_TIME):
            results = [expired_line(line.custom_id) for line in undone[place : place + _EXPIRED_AT_A_TIME]]
            self._store.caps.check_bytes(shelf, sum(len(result) + 1 for result in results))
            await self._store.add_results(stored, results, is_error=True)

    def _has_window_ended(self, batch: Batch) -> bool:
        return batch.expired_at is not None or batch.expires_at <= self._now_s()

    async def _run_lines(self, stored: StoredBatch, lines: list[Line]) -> None:
        """Run all lines, unless the window ends or somebody cancels."""
        waiting = iter(lines)
        workers = [
            asyncio.ensure_future(self._run_next(stored, waiting))
            for _ in range(min(self._settings.batch_concurrency, len(lines)))
        ]
        working = asyncio.ensure_future(asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)) if workers else None
        try:
            while working is not None and not working.done():
                if self._has_window_ended(stored.batch) or stored.batch.status == "cancelling":
                    return
                left_s = stored.batch.expires_at - self._now_s()
                noticed = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait((working, noticed), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                noticed.cancel()
                self._changed.clear()
            for worker in workers:
                if worker.done():
                    worker.result()
            if self._is_draining:
                raise DrainingError("the server is shutting down")
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            if working is not None:
                await asyncio.gather(working, return_exceptions=True)

    async def _run_next(self, stored: StoredBatch, lines: Iterator[Line]) -> None:
        batch, caller = stored.batch, caller_of_batch(stored.key_number, stored.tenant)
        shelf = self._store.shelf(stored.owner)
        content = self._store.content_path(shelf.files[batch.input_file_id].file)
        for line in lines:
            self._store.caps.check_bytes(shelf)
            try:
                status, body = await call(self._app, batch.endpoint, partial(self._load, content, line), caller)
            except DrainingError:
                self._is_draining = True  # others may still end in time
                return
            is_error = status >= _BAD_REQUEST
            await self._store.add_results(stored, [result_line(line.custom_id, status, body)], is_error=is_error)

    async def _load(self, content: Path, line: Line) -> bytes:
        """Read a request; one at a time, so that long ones do not hold the event loop up together."""
        async with self._reading:
            return await in_worker(read_request, content, line)

    async def _finish(self, stored: StoredBatch) -> None:
        """Turn the results into files, and say how it ended. A crash in between loses nothing: their ids are known."""
        batch = stored.batch
        await self._store.settle()
        if batch.finalizing_at is None:
            batch.finalizing_at = self._now_s()
            if self._store.results_path(batch, is_error=False).exists():
                batch.output_file_id = self._store.new_file_id()
            if self._store.results_path(batch, is_error=True).exists():
                batch.error_file_id = self._store.new_file_id()
            if batch.status == "in_progress" or (batch.status == "validating" and batch.errors is None):
                batch.status = "finalizing"
            await self._store.save(stored)
        for file_id, is_error in ((batch.output_file_id, False), (batch.error_file_id, True)):
            if file_id is not None:
                await self._store.publish(stored, file_id, is_error=is_error)
        if batch.status == "cancelling":
            batch.status, batch.cancelled_at = "cancelled", self._now_s()
        elif batch.expired_at is not None:
            batch.status = "expired"
        elif batch.errors is not None:
            batch.status, batch.failed_at = "failed", self._now_s()
        else:
            batch.status, batch.completed_at = "completed", self._now_s()
        await self._store.save(stored)

    def _find_lines(self, stored: StoredBatch) -> list[Line] | list[BatchError]:
        batch = stored.batch
        context: ServerContext = self._app.state.context
        limits = LineLimits(
            self._settings.max_batch_requests,
            context.settings.max_body_bytes,
            context.sections.limits.max_body_values,
        )
        file = self._store.shelf(stored.owner).files.get(batch.input_file_id)
        try:
            if file is not None:
                return find_lines(self._store.content_path(file.file), batch.endpoint, limits)
        except FileNotFoundError:
            pass
        return [BatchError("the input file is gone", code="file_missing")]
