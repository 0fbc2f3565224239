"""Log set-up, and warnings that do not flood.

Knows nothing of requests: no prompt, output or key is ever given to it.
"""

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import TextIO

_FORMAT = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s"
_HANDLER_NAME = "chairlift"
_NS_PER_S = 1_000_000_000


FIELDS = "chairlift_fields"
"""Under this name a log record carries the fields of :func:`log_fields`."""


def configure_logging(level: str = "info", stream: TextIO | None = None, log_format: str = "text") -> None:
    """Write log lines of ``chairlift`` loggers to ``stream`` (standard error if absent). Calling again replaces it.

    ``log_format`` is ``text``, or ``json`` for one object per line.
    """
    logger = logging.getLogger("chairlift")
    for handler in [handler for handler in logger.handlers if handler.get_name() == _HANDLER_NAME]:
        logger.removeHandler(handler)
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.set_name(_HANDLER_NAME)
    handler.setFormatter(JsonFormatter() if log_format == "json" else _TextFormatter(_FORMAT))
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False


def log_fields(logger: logging.Logger, message: str, fields: Mapping[str, object]) -> None:
    """Log a message at level info with fields: ``key=value`` pairs in text, keys of the object in JSON."""
    logger.info("%s", message, extra={FIELDS: dict(fields)})


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC), level, logger, process, message, and the record's fields."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"
    converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process_id": record.process,
            "message": record.getMessage(),
        }
        line.update(getattr(record, FIELDS, {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


class _TextFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is the library's
        line = super().formatMessage(record)
        fields: dict[str, object] = getattr(record, FIELDS, {})
        return f"{line} {format_fields(**fields)}" if fields else line


def format_fields(**fields: object) -> str:
    """Return ``key=value`` pairs for a log line; values with spaces are quoted."""
    return " ".join(f"{key}={_quote(str(value))}" for key, value in fields.items())


def _quote(text: str) -> str:
    return repr(text) if not text or any(char.isspace() for char in text) else text


class RateLimitedWarning:
    """Logs a warning at most once per interval, and says how often it was held back.

    Time comes from the caller, so that a simulated clock works too.
    """

    def __init__(self, logger: logging.Logger, interval_s: float = 10.0) -> None:
        self._logger = logger
        self._interval_ns = int(interval_s * _NS_PER_S)
        self._last_ns: int | None = None
        self._num_held_back = 0

    def warn(self, now_ns: int, message: str, *args: object) -> bool:
        """Log the message, or count it. Returns whether it was logged."""
        if self._last_ns is not None and now_ns - self._last_ns < self._interval_ns:
            self._num_held_back += 1
            return False
        if self._num_held_back:
            message, args = f"{message} (and %d more since the last such line)", (*args, self._num_held_back)
        self._logger.warning(message, *args)
        self._last_ns, self._num_held_back = now_ns, 0
        return True
