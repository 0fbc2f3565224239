"""Errors across the process boundary: by class name from a fixed table, so that nothing is ever unpickled.

Knows nothing of who raised them.
"""

from chairlift import errors
from chairlift.engine.messages import Verdict

_BY_NAME: dict[str, type[errors.ChairliftError]] = {
    kind.__name__: kind
    for kind in (
        errors.ConfigurationError,
        errors.ModelLoadError,
        errors.InvalidRequestError,
        errors.RequestTooLongError,
        errors.UnknownModelError,
        errors.OverloadedError,
        errors.DrainingError,
        errors.EngineUnavailableError,
    )
}


def to_verdict(request_id: int, error: errors.ChairliftError) -> Verdict:
    """Turn a refusal into the message that carries it."""
    return Verdict(
        request_id,
        type(error).__name__,
        error.message,
        error.param if isinstance(error, errors.InvalidRequestError) else None,
        error.retry_after_s if isinstance(error, errors.OverloadedError) else 1,
    )


def to_error(verdict: Verdict) -> errors.ChairliftError:
    """Turn the message back into the error. The verdict must be a refusal."""
    kind = named_error(verdict.error or "")
    if issubclass(kind, errors.InvalidRequestError):
        return kind(verdict.message, param=verdict.param)
    if issubclass(kind, errors.OverloadedError):
        return kind(verdict.message, retry_after_s=verdict.retry_after_s)
    return kind(verdict.message)


def named_error(name: str) -> type[errors.ChairliftError]:
    """Return the class of this name; :class:`~chairlift.errors.EngineUnavailableError` if it is not in the table."""
    return _BY_NAME.get(name, errors.EngineUnavailableError)
