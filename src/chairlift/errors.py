"""The exception family of Chairlift, and what each one means to an HTTP client.

Knows nothing of HTTP frameworks: the server reads :attr:`ChairliftError.http_status`.

::

    ChairliftError
    ├── ConfigurationError          settings that cannot work, refused at start
    ├── ModelLoadError              a model folder or file that cannot be served
    ├── InvalidRequestError         the request is wrong (400)
    │   ├── RequestTooLongError     prompt or prompt + output exceeds a limit (400)
    │   ├── UnknownModelError       no such model here (404)
    │   └── UnknownRequestError     no such request here, or not the asker's (404)
    ├── AuthenticationError         missing or wrong API key (401)
    ├── OverloadedError             the queue is full, try later (503 + Retry-After)
    │   ├── TooManyRequestsError    one key has as many requests running as it may have (429 + Retry-After)
    │   ├── DrainingError           the server is shutting down (503 + Retry-After)
    │   └── QueueTimeoutError       it waited for a slot as long as --queue-timeout allows (503 + Retry-After)
    ├── RequestCancelledError       somebody who may do so cancelled it (409)
    ├── DeadlineExceededError       the request's own deadline passed, or could not be met any more (504)
    ├── EngineUnavailableError      the engine cannot answer the request (503)
    │   ├── EngineDownError         the engine process is down, and has not seen the request (503)
    │   └── EngineDiedError         the engine process died while it had the request (503)
    ├── PoolExhaustedError          a page was asked for that the pool does not have (bug or policy fault)
    ├── LeaseError                  a page lease was misused (bug)
    └── InvariantError              the scheduler's state contradicts itself (bug)
"""

from typing import ClassVar


class ChairliftError(Exception):
    """Base of every error that Chairlift raises on purpose."""

    http_status: ClassVar[int] = 500
    error_type: ClassVar[str] = "internal_server_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigurationError(ChairliftError):
    """A setting, or a combination of settings, cannot work."""


class ModelLoadError(ChairliftError):
    """A model cannot be loaded: missing file, unknown architecture, unsupported tensor type."""


class InvalidRequestError(ChairliftError):
    """The request itself is wrong; sending it again will not help.

    ``param`` names the offending request field, as OpenAI's error body does.
    """

    http_status = 400
    error_type = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class RequestTooLongError(InvalidRequestError):
    """Prompt, or prompt plus requested output, exceeds a limit that will not change while serving."""


class UnknownModelError(InvalidRequestError):
    """The request names a model that this server does not serve."""

    http_status = 404


class UnknownRequestError(InvalidRequestError):
    """No live request has this id, or it belongs to somebody else: which of both is not said."""

    http_status = 404


class AuthenticationError(ChairliftError):
    """The API key is missing or wrong."""

    http_status = 401
    error_type = "authentication_error"


class OverloadedError(ChairliftError):
    """The server has as much waiting work as it was told to accept.

    ``retry_after_s`` goes to the client in the ``Retry-After`` header.
    """

    http_status = 503
    error_type = "overloaded_error"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooManyRequestsError(OverloadedError):
    """One key, or one address, has as many requests being answered as it may have."""

    http_status = 429
    error_type = "rate_limit_error"


class DrainingError(OverloadedError):
    """The server is shutting down and takes no new requests."""


class QueueTimeoutError(OverloadedError):
    """The request waited for its first slot as long as the server lets one wait."""


class DeadlineExceededError(ChairliftError):
    """The request's own deadline passed before its first token, or could no longer be met."""

    http_status = 504
    error_type = "deadline_exceeded"


class RequestCancelledError(ChairliftError):
    """The request was cancelled by its sender, or by an administrator, before it had ended."""

    http_status = 409
    error_type = "request_cancelled"


class EngineUnavailableError(ChairliftError):
    """The engine process died or is still starting."""

    http_status = 503
    error_type = "engine_unavailable"


class EngineDownError(EngineUnavailableError):
    """No engine process was there to take the request; none has worked on it."""


class EngineDiedError(EngineUnavailableError):
    """The engine process died while it had the request, which may be its cause or suffer from it like others."""


class PoolExhaustedError(ChairliftError):
    """More pages were asked for than are free or evictable."""


class LeaseError(ChairliftError):
    """A page lease was released twice, or used after its release."""


class InvariantError(ChairliftError):
    """The scheduler's state contradicts itself; the message holds the violations and the state."""
