"""Works on batches, one after the other, while the server runs; what was left undone goes on after a restart.

Knows nothing of HTTP.

::

    validating -> in_progress -> finalizing -> completed | expired
         |              |  cancelling ...   -> cancelled
         +--------------+-> failed: a line is wrong, or there is no room for results

One batch has its turn, which only a window that ends while the batch waits does without: there is nothing to run then.
One that the disk keeps from going on rests for a while, and others have their turn. What a batch is changes once that
is on the disk, one change at a time.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from chairlift.config.sections import BatchSettings
from chairlift.errors import DrainingError
from chairlift.server.batches.calls import LineCaller, caller_of_batch
from chairlift.server.batches.expiry import FileExpiry
from chairlift.server.batches.lines import Line, LineLimits, find_lines, read_request
from chairlift.server.batches.objects import ENDED, Batch, BatchError, BatchErrors, StoredBatch
from chairlift.server.batches.rests import Rests, wait_at_most
from chairlift.server.batches.results import expired_line, find_done, result_line
from chairlift.server.batches.shelves import StorageFullError
from chairlift.server.batches.store import BatchStore, disk_error, now_s
from chairlift.server.context import ServerContext
from chairlift.server.workers import in_worker

logger = logging.getLogger(__name__)

_BAD_REQUEST = 400
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
        self._rests = Rests()
        self._changing = asyncio.Lock()
        self._is_draining = False
        self._lines = LineCaller(app)
        self._reading = asyncio.Lock()

    def notice(self) -> None:
        """There is a new batch, or time has passed."""
        self._changed.set()
        self._windows_changed.set()

    async def cancel(self, stored: StoredBatch) -> None:
        """End a batch that has not ended: at once if nothing of it was done, or else when what runs has stopped.

        Raises:
            DiskError: the disk does not take it, and the batch goes on.
        """
        batch = stored.batch
        async with self._changing:
            if batch.status in ENDED or batch.status == "cancelling":
                return
            changes: dict[str, Any] = {"status": "cancelling", "cancelling_at": self._now_s()}
            is_idle = batch.id not in self._working
            if is_idle:
                self._working.add(batch.id)  # nobody begins with it while it is written
                if batch.in_progress_at is None and batch.expired_at is None and batch.finalizing_at is None:
                    changes |= {"status": "cancelled", "cancelled_at": self._now_s()}
            try:
                await self._store.save(stored, **changes)
            except OSError as error:
                raise disk_error("does not take that the batch is cancelled", error) from error
            finally:
                if is_idle:
                    self._working.discard(batch.id)
        self._rests.end(batch.id)
        self.notice()

    async def run(self) -> None:
        """Work for ever."""
        expiry = FileExpiry(self._store, self._now_s)
        watching = [asyncio.ensure_future(self._watch_windows()), asyncio.ensure_future(expiry.run())]
        try:
            await self._take_turns()
        except DrainingError:
            pass  # goes on after the next start
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _take_turns(self) -> None:
        while True:
            self._changed.clear()
            resting = self._rests.now()
            stored = self._store.find_next_batch(self._working | resting.keys())
            if stored is not None:
                await self._work_on(stored)
                continue
            await wait_at_most(self._changed, min(resting.values(), default=None))

    async def _watch_windows(self) -> None:
        """End the batches that wait when their windows do."""
        while True:
            self._windows_changed.clear()
            waiting = [one for one in self._store.open_batches() if one.batch.id not in self._working]
            first = min(waiting, key=self._left_s, default=None)
            left_s = None if first is None else self._left_s(first)
            if first is not None and left_s == 0:
                await self._work_on(first)
                continue
            await wait_at_most(self._windows_changed, left_s)

    def _left_s(self, stored: StoredBatch) -> float:
        """How long it takes until a batch that waits is to be ended."""
        batch = stored.batch
        until_end_s = 0 if self._has_window_ended(batch) else batch.expires_at - self._now_s()
        return max(until_end_s, self._rests.left_s(batch.id))

    async def _work_on(self, stored: StoredBatch) -> None:
        """Bring a batch to its end; or say why that cannot be, and leave it alone for a while."""
        batch_id = stored.batch.id
        self._working.add(batch_id)
        try:
            await self._bring_to_end(stored)
            self._rests.end(batch_id)
        except OSError:
            logger.exception(
                "%s cannot go on: the folder of --batch-dir does not work; trying again in %g s",
                batch_id,
                self._rests.begin(batch_id),
            )
        finally:
            self._working.discard(batch_id)
            self.notice()

    async def _bring_to_end(self, stored: StoredBatch) -> None:
        errors: list[BatchError] = []
        try:
            if stored.batch.finalizing_at is None:
                errors = await self._answer(stored)
        except StorageFullError as error:
            errors = [BatchError(error.message, code="storage_full")]
        except (DrainingError, OSError):
            raise
        except Exception:
            # One batch that cannot be worked on must not hold up all others for ever.
            logger.exception("batch %s failed", stored.batch.id)
            errors = [BatchError("internal error", code="internal_error")]
        await self._finish(stored, errors)

    async def _answer(self, stored: StoredBatch) -> list[BatchError]:
        """Check all lines, and answer those that have no answer yet; or say what is wrong with them."""
        batch = stored.batch
        if batch.status == "cancelling":  # whatever is in its input, nothing of that is wanted
            await self._count_done(stored)
            return []
        found = await asyncio.to_thread(self._find_lines, stored)
        errors = [one for one in found if isinstance(one, BatchError)]
        if errors:
            return errors
        lines = [one for one in found if isinstance(one, Line)]
        undone = await self._find_undone(stored, lines)
        if not self._has_window_ended(batch):
            async with self._changing:
                is_new = batch.status == "validating"
                begun: dict[str, Any] = {"status": "in_progress", "in_progress_at": self._now_s()} if is_new else {}
                await self._store.save(stored, **begun)
            if batch.status == "in_progress":
                await self._run_lines(stored, undone)
            await self._store.settle()
            counts = batch.request_counts
            if counts.completed + counts.failed >= counts.total:
                return []
            undone = await self._find_undone(stored, lines)
        if undone:
            await self._expire(stored, undone)
        return []

    async def _find_undone(self, stored: StoredBatch, lines: Sequence[Line]) -> list[Line]:
        """The lines without a result; all are counted."""
        done = await self._count_done(stored)
        stored.batch.request_counts.total = len(lines)
        return [line for line in lines if line.custom_id not in done]

    async def _count_done(self, stored: StoredBatch) -> set[str]:
        """Ids of the lines that have a result, which are counted."""
        await self._store.settle()
        results = [self._store.results_path(stored.batch, is_error=is_error) for is_error in (False, True)]
        completed, failed = [await asyncio.to_thread(find_done, path) for path in results]
        counts = stored.batch.request_counts
        counts.completed, counts.failed = len(completed), len(failed)
        return completed | failed

    async def _expire(self, stored: StoredBatch, undone: Sequence[Line]) -> None:
        """Give all lines without a result that of having come too late, unless the batch is cancelled."""
        batch, shelf = stored.batch, self._store.shelf(stored.owner)
        async with self._changing:
            if batch.status == "cancelling":
                return
            # Whoever goes on after a crash knows why these lines have results.
            expired_at = self._now_s() if batch.expired_at is None else batch.expired_at
            await self._store.save(stored, expired_at=expired_at)
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
                status, body = await self._lines.call(batch.endpoint, partial(self._load, content, line), caller)
            except DrainingError:
                self._is_draining = True  # others may still end in time
                return
            is_error = status >= _BAD_REQUEST
            await self._store.add_results(stored, [result_line(line.custom_id, status, body)], is_error=is_error)

    async def _load(self, content: Path, line: Line) -> bytes:
        """Read a request; one at a time, so that long ones do not hold the event loop up together."""
        async with self._reading:
            return await in_worker(read_request, content, line)

    async def _finish(self, stored: StoredBatch, errors: list[BatchError]) -> None:
        """Turn the results into files, and say how it ended. A crash in between loses nothing: their ids are known."""
        batch = stored.batch
        await self._store.settle()
        if batch.finalizing_at is None:
            async with self._changing:
                await self._store.save(stored, **self._finalized(batch, errors))
        for file_id, is_error in ((batch.output_file_id, False), (batch.error_file_id, True)):
            if file_id is not None:
                await self._store.publish(stored, file_id, is_error=is_error)
        async with self._changing:
            await self._store.save(stored, **self._ended(batch))

    def _finalized(self, batch: Batch, errors: list[BatchError]) -> dict[str, Any]:
        """What changes where nothing more is answered."""
        changes: dict[str, Any] = {"finalizing_at": self._now_s()}
        if errors:
            changes["errors"] = BatchErrors(errors)
        if batch.status == "in_progress" or (batch.status == "validating" and not errors):
            changes["status"] = "finalizing"
        for field, is_error in (("output_file_id", False), ("error_file_id", True)):
            if self._store.results_path(batch, is_error=is_error).exists():
                changes[field] = self._store.new_file_id()
        return changes

    def _ended(self, batch: Batch) -> dict[str, Any]:
        """What changes at the end."""
        if batch.status == "cancelling":
            return {"status": "cancelled", "cancelled_at": self._now_s()}
        if batch.expired_at is not None:
            return {"status": "expired"}
        if batch.errors is not None:
            return {"status": "failed", "failed_at": self._now_s()}
        return {"status": "completed", "completed_at": self._now_s()}

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
        except OSError as error:
            if not self._has_window_ended(batch):
                raise
            return [BatchError(f"the input file cannot be read: {error.strerror}", code="file_unreadable")]
        return [BatchError("the input file is gone", code="file_missing")]
