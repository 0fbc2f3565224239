"""Works on batches, one after the other, while the server runs; what was left undone goes on after a restart.

Knows nothing of HTTP.

::

    validating -> in_progress -> finalizing -> completed | expired
         |              |  cancelling ...   -> cancelled
         +--------------+-> failed: a line is wrong, or there is no room for results
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fastapi import FastAPI

from chairlift.config.sections import BatchSettings
from chairlift.errors import DrainingError
from chairlift.server.batches.calls import call, caller_of_batch
from chairlift.server.batches.lines import Line, LineLimits, find_lines, read_request
from chairlift.server.batches.objects import BatchError, BatchErrors, StoredBatch
from chairlift.server.batches.results import find_done, result_line
from chairlift.server.batches.shelves import StorageFullError
from chairlift.server.batches.store import BatchStore, now_s
from chairlift.server.context import ServerContext
from chairlift.server.workers import in_worker

logger = logging.getLogger(__name__)

_BAD_REQUEST = 400
_DISK_RETRY_S = 30.0


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
        self._current: StoredBatch | None = None
        self._is_draining = False
        self._reading = asyncio.Lock()

    def notice(self) -> None:
        """There is a new batch, or time has passed."""
        self._changed.set()

    async def cancel(self, stored: StoredBatch) -> None:
        """End a batch that has not ended: at once if nothing of it was done, or else when what runs has stopped."""
        batch = stored.batch
        batch.status, batch.cancelling_at = "cancelling", self._now_s()
        if batch.in_progress_at is None and stored is not self._current:
            batch.status, batch.cancelled_at = "cancelled", self._now_s()
        self._changed.set()
        await self._store.save(stored)

    async def run(self) -> None:
        """Work for ever."""
        while True:
            self._changed.clear()
            self._current = self._store.find_next_batch()
            try:
                if self._current is None:
                    await self._changed.wait()
                else:
                    await self._work_on(self._current)
            except DrainingError:
                return  # goes on after the next start
            except OSError:
                logger.exception("batches cannot go on: the folder of --batch-dir does not work; trying again later")
                await asyncio.sleep(_DISK_RETRY_S)

    async def _work_on(self, stored: StoredBatch) -> None:
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
        await self._store.settle()
        results = [self._store.results_path(batch, is_error=is_error) for is_error in (False, True)]
        completed, failed = [await asyncio.to_thread(find_done, path) for path in results]
        counts = batch.request_counts
        counts.total, counts.completed, counts.failed = len(lines), len(completed), len(failed)
        if batch.status == "validating":
            batch.status, batch.in_progress_at = "in_progress", self._now_s()
        await self._store.save(stored)
        if batch.status == "in_progress":
            done = completed | failed
            await self._run_lines(stored, [line for line in lines if line.custom_id not in done])

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
                left_s = stored.batch.expires_at - self._now_s()
                if left_s <= 0 or stored.batch.status == "cancelling":
                    return
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
            await self._store.add_result(stored, result_line(line.custom_id, status, body), is_error=is_error)

    async def _load(self, content: Path, line: Line) -> bytes:
        """Read a request; one at a time, so that long ones do not hold the event loop up together."""
        async with self._reading:
            return await in_worker(read_request, content, line)

    async def _finish(self, stored: StoredBatch) -> None:
        """Turn the results into files, and say how it ended. A crash in between loses nothing: their ids are known."""
        batch, counts = stored.batch, stored.batch.request_counts
        await self._store.settle()
        if batch.finalizing_at is None:
            batch.finalizing_at = self._now_s()
            if self._store.results_path(batch, is_error=False).exists():
                batch.output_file_id = self._store.new_file_id()
            if self._store.results_path(batch, is_error=True).exists():
                batch.error_file_id = self._store.new_file_id()
            if batch.status == "in_progress":
                batch.status = "finalizing"
            await self._store.save(stored)
        for file_id, is_error in ((batch.output_file_id, False), (batch.error_file_id, True)):
            if file_id is not None:
                await self._store.publish(stored, file_id, is_error=is_error)
        if batch.status == "cancelling":
            batch.status, batch.cancelled_at = "cancelled", self._now_s()
        elif batch.errors is not None:
            batch.status, batch.failed_at = "failed", self._now_s()
        elif counts.completed + counts.failed < counts.total:
            batch.status, batch.expired_at = "expired", self._now_s()
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
