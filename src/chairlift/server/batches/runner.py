"""Works on batches, one after the other, while the server runs; what was left undone goes on after a restart.

Knows nothing of HTTP.

::

    validating -> in_progress -> finalizing -> completed | expired
         |              |  cancelling ...   -> cancelled
         failed
"""

import asyncio
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI

from chairlift.config.sections import BatchSettings
from chairlift.errors import DrainingError
from chairlift.server.access import Caller
from chairlift.server.batches.calls import ENDPOINTS, BatchLine, call
from chairlift.server.batches.objects import ENDED, BatchError, BatchErrors, StoredBatch
from chairlift.server.batches.store import BatchStore, now_s

logger = logging.getLogger(__name__)

_MAX_ERRORS = 20
_BAD_REQUEST = 400


class BatchRunner:
    """Runs in the server's event loop until it is cancelled."""

    def __init__(self, app: FastAPI, store: BatchStore, settings: BatchSettings) -> None:
        self._app = app
        self._store = store
        self._settings = settings
        self._changed = asyncio.Event()

    def notice(self) -> None:
        """There is a new batch, or one is to be cancelled."""
        self._changed.set()

    async def run(self) -> None:
        """Work for ever."""
        while True:
            self._changed.clear()
            open_batches = [stored for stored in self._store.batches.values() if stored.batch.status not in ENDED]
            if not open_batches:
                await self._changed.wait()
                continue
            stored = min(open_batches, key=lambda stored: (stored.batch.created_at, stored.batch.id))
            try:
                await self._work_on(stored)
            except DrainingError:
                return  # goes on after the next start
            except OSError:
                logger.exception("batches cannot go on: the folder of --batch-dir does not work")
                return
            except Exception:
                # One batch that cannot be worked on must not hold up all others for ever.
                logger.exception("batch %s failed", stored.batch.id)
                stored.batch.status, stored.batch.failed_at = "failed", now_s()
                stored.batch.errors = BatchErrors([BatchError("internal error", code="internal_error")])
                self._store.save(stored)

    async def _work_on(self, stored: StoredBatch) -> None:
        batch = stored.batch
        if batch.finalizing_at is not None:
            self._finish(stored)
            return
        try:
            lines = await asyncio.to_thread(self._read, stored)
        except (OSError, KeyError):
            lines = [BatchError("the input file is gone", code="file_missing")]
        errors = [line for line in lines if isinstance(line, BatchError)]
        if errors:
            batch.status, batch.failed_at = "failed", now_s()
            batch.errors = BatchErrors(errors[:_MAX_ERRORS])
            self._store.save(stored)
            return
        done = await asyncio.to_thread(self._find_done, stored)
        batch.request_counts.total = len(lines)
        batch.request_counts.completed, batch.request_counts.failed = (len(done[kind]) for kind in (False, True))
        if batch.status == "validating":
            batch.status, batch.in_progress_at = "in_progress", now_s()
        self._store.save(stored)
        ids = done[False] | done[True]
        left = [line for line in lines if isinstance(line, BatchLine) and line.custom_id not in ids]
        if batch.status == "in_progress":
            await self._run_lines(stored, left)
        self._finish(stored)

    async def _run_lines(self, stored: StoredBatch, lines: list[BatchLine]) -> None:
        """Run all lines, unless the window ends or somebody cancels."""
        waiting = iter(lines)
        workers = [
            asyncio.ensure_future(self._run_next(stored, waiting))
            for _ in range(min(self._settings.batch_concurrency, len(lines)))
        ]
        working = asyncio.ensure_future(asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)) if workers else None
        try:
            while working is not None and not working.done():
                left_s = stored.batch.expires_at - now_s()
                if left_s <= 0 or stored.batch.status == "cancelling":
                    return
                noticed = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait((working, noticed), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                noticed.cancel()
                self._changed.clear()
            for worker in workers:
                if worker.done():
                    worker.result()
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            if working is not None:
                await asyncio.gather(working, return_exceptions=True)

    async def _run_next(self, stored: StoredBatch, lines: Iterator[BatchLine]) -> None:
        caller = Caller(stored.key_number, stored.tenant)
        counts = stored.batch.request_counts
        for line in lines:
            status, body = await call(self._app, line, caller)
            is_error = status >= _BAD_REQUEST
            result: dict[str, Any] = {
                "id": f"batch_req_{secrets.token_hex(12)}",
                "custom_id": line.custom_id,
                "response": {"status_code": status, "request_id": secrets.token_hex(12), "body": body},
                "error": None,
            }
            _append(self._store.results_path(stored.batch, is_error=is_error), result)
            if is_error:
                counts.failed += 1
            else:
                counts.completed += 1

    def _finish(self, stored: StoredBatch) -> None:
        """Turn the results into files, and say how it ended. A crash in between loses nothing: their ids are known."""
        batch, counts = stored.batch, stored.batch.request_counts
        if batch.finalizing_at is None:
            batch.finalizing_at = now_s()
            if self._store.results_path(batch, is_error=False).exists():
                batch.output_file_id = self._store.new_file_id()
            if self._store.results_path(batch, is_error=True).exists():
                batch.error_file_id = self._store.new_file_id()
            if batch.status == "in_progress":
                batch.status = "finalizing"
            self._store.save(stored)
        for file_id, is_error in ((batch.output_file_id, False), (batch.error_file_id, True)):
            if file_id is not None and file_id not in self._store.files:
                name = f"{batch.id}_{'errors' if is_error else 'output'}.jsonl"
                content = self._store.results_path(batch, is_error=is_error)
                self._store.add_file(stored.owner, name, "batch_output", content, file_id)
        if batch.status == "cancelling":
            batch.status, batch.cancelled_at = "cancelled", now_s()
        elif counts.completed + counts.failed < counts.total:
            batch.status, batch.expired_at = "expired", now_s()
        else:
            batch.status, batch.completed_at = "completed", now_s()
        self._store.save(stored)

    def _read(self, stored: StoredBatch) -> list[BatchLine | BatchError]:
        batch = stored.batch
        seen: set[str] = set()
        read: list[BatchLine | BatchError] = []
        with self._store.content_path(batch.input_file_id).open("rb") as content:
            for number, raw in enumerate(content, 1):
                if not raw.strip():
                    continue
                if len(read) >= self._settings.max_batch_requests:
                    return [BatchError(f"more lines than --max-batch-requests {self._settings.max_batch_requests}")]
                read.append(_checked(raw, number, batch.endpoint, seen))
        return read or [BatchError("the input file is empty", code="empty_file")]

    def _find_done(self, stored: StoredBatch) -> dict[bool, set[str]]:
        """Ids of the lines that have a result; a line that a crash cut off has none, and is taken away."""
        found: dict[bool, set[str]] = {False: set(), True: set()}
        for is_error, ids in found.items():
            path = self._store.results_path(stored.batch, is_error=is_error)
            if not path.exists():
                continue
            whole = path.read_bytes()
            whole = whole[: whole.rfind(b"\n") + 1]
            path.write_bytes(whole)
            ids.update(msgspec.json.decode(line)["custom_id"] for line in whole.splitlines())
        return found


def _checked(raw: bytes, number: int, endpoint: str, seen: set[str]) -> BatchLine | BatchError:
    try:
        line = msgspec.json.decode(raw, type=BatchLine)
    except (msgspec.DecodeError, RecursionError) as error:
        return BatchError(f"no request: {error}", code="invalid_json_line", line=number)
    if line.method != "POST" or line.url != endpoint or endpoint not in ENDPOINTS:
        return BatchError(f"must be POST {endpoint}", code="invalid_url", line=number, param="url")
    if line.custom_id in seen:
        return BatchError("custom_id was used before", code="duplicate_custom_id", line=number, param="custom_id")
    if line.body.get("stream"):
        return BatchError("answers of a batch are not streamed", line=number, param="body.stream")
    seen.add(line.custom_id)
    return line


def _append(path: Path, result: dict[str, Any]) -> None:
    with path.open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")
