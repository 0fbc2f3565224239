"""Files and batches as OpenAI writes them, and as they are kept on disk. Knows nothing of how they come about."""

from typing import Literal

import msgspec

BatchState = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
ENDED: frozenset[BatchState] = frozenset({"failed", "completed", "expired", "cancelled"})


class FileObject(msgspec.Struct, kw_only=True):
    """A file."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    object: Literal["file"] = "file"
    expires_at: int | None = None
    status: Literal["processed"] = "processed"


class FileList(msgspec.Struct):
    """Answer of GET /v1/files."""

    data: list[FileObject]
    object: Literal["list"] = "list"
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class FileDeleted(msgspec.Struct):
    """Answer of DELETE /v1/files/{id}."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class BatchError(msgspec.Struct):
    """What is wrong with a line of the input."""

    message: str
    code: str = "invalid_request"
    line: int | None = None
    param: str | None = None


class BatchErrors(msgspec.Struct):
    """What is wrong with the input."""

    data: list[BatchError]
    object: Literal["list"] = "list"


class RequestCounts(msgspec.Struct):
    """Requests of a batch."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(msgspec.Struct, kw_only=True):
    """A batch."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: BatchState = "validating"
    object: Literal["batch"] = "batch"
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    metadata: dict[str, str] | None = None


class BatchList(msgspec.Struct):
    """Answer of GET /v1/batches."""

    data: list[Batch]
    object: Literal["list"] = "list"
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class StoredFile(msgspec.Struct):
    """A file, and whose it is."""

    owner: str
    file: FileObject
    number: int = 0

    @property
    def age_key(self) -> tuple[int, int, str]:
        """Sorts files by their age: numbers grow through restarts, and what was kept before there were any is older."""
        return self.number, self.file.created_at, self.file.id


class StoredBatch(msgspec.Struct):
    """A batch, and whose it is: the tenant of its requests is part of that."""

    owner: str
    key_number: int | None
    tenant: str | None
    batch: Batch
    number: int = 0
    output_expires_after_s: int | None = None
    """How long the files of its results are kept; without end if absent."""

    @property
    def age_key(self) -> tuple[int, int, str]:
        """Sorts batches by their age, as that of a file does."""
        return self.number, self.batch.created_at, self.batch.id
