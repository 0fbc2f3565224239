"""Reads the decision log of an engine that served: its requests can be served again, by other rules.

Knows nothing of other formats. Lengths, arrivals, tiers and tenants are those of the log. Prompts share nothing, since
the log has no more of them than their lengths.
"""

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from chairlift.errors import ConfigurationError
from chairlift.workload.items import WorkRequest
from chairlift.workload.traces.reading import Lap, mean_rate_per_s, naming_line, open_text, stretch


class DecisionLogTrace:
    """Requests of a log whose first token came; the others have no length yet."""

    has_arrivals = True

    def __init__(self, path: Path) -> None:
        self._path = path

    @staticmethod
    def fits(first_line: str) -> bool:
        """Whether a file with this first line is of this format."""
        return first_line.startswith("{") and '"kind":"start"' in first_line.replace(" ", "")

    def requests(self, lap: Lap) -> Iterator[WorkRequest]:
        """Read the requests; see :class:`~.reading.Trace`."""
        rows = self._rows
        return stretch(rows, mean_rate_per_s(len(rows), rows[-1].arrival_ns), lap)

    @cached_property
    def _rows(self) -> list[WorkRequest]:
        tally = _Tally()
        with open_text(self._path) as file:
            for number, line in enumerate(file, start=1):
                with naming_line(number):
                    try:
                        entry: dict[str, Any] = json.loads(line)
                    except json.JSONDecodeError:
                        break  # the engine died while it wrote the last line
                    tally.take(entry)
        rows = tally.finish()
        if not rows:
            raise ConfigurationError(f"decision log {self._path} has no request that got a token")
        return rows


class _Tally:
    """Counts the output tokens of every request: one per step in which it decodes or ends its prompt."""

    def __init__(self) -> None:
        self._added: dict[int, dict[str, Any]] = {}
        self._num_tokens: dict[int, int] = {}
        self._decoding_since: dict[int, int] = {}
        self._num_steps = 0
        self._rows: list[WorkRequest] = []

    def take(self, entry: dict[str, Any]) -> None:
        """Take note of an entry. A scheduler that starts again uses new numbers for the same ids."""
        kind = entry.get("kind")
        if kind == "start":
            self._settle()
        elif kind == "add":
            self._added[entry["id"]] = entry
        elif kind == "plan" and entry.get("plan"):
            self._plan(entry["plan"])

    def finish(self) -> list[WorkRequest]:
        """Return the requests, in the order of their arrival, from 0 on."""
        self._settle()
        rows = sorted(self._rows, key=lambda row: row.arrival_ns)
        return [row._replace(arrival_ns=row.arrival_ns - rows[0].arrival_ns) for row in rows]

    def _plan(self, plan: dict[str, Any]) -> None:
        for request_id in (*plan.get("ended", ()), *plan.get("left", ())):
            self._leave(request_id)
        for request_id in plan.get("joined", ()):
            self._decoding_since[request_id] = self._num_steps
        for request_id, _, _, samples, _ in plan.get("chunks", ()):
            if samples:
                self._num_tokens[request_id] = self._num_tokens.get(request_id, 0) + 1
        self._num_steps += 1

    def _leave(self, request_id: int) -> None:
        since = self._decoding_since.pop(request_id, None)
        if since is not None:
            self._num_tokens[request_id] = self._num_tokens.get(request_id, 0) + self._num_steps - since

    def _settle(self) -> None:
        for request_id in list(self._decoding_since):
            self._leave(request_id)
        for request_id, entry in self._added.items():
            num_tokens = self._num_tokens.get(request_id, 0)
            if num_tokens:
                # Steps in flight when a request ended computed tokens that nobody got.
                num_tokens = min(num_tokens, entry.get("max_tokens") or num_tokens)
                tier, tenant = entry.get("tier", 0), entry.get("tenant", "")
                self._rows.append(WorkRequest(entry["t"], entry["prompt"], num_tokens, tier=tier, tenant=tenant))
        self._added.clear()
        self._num_tokens.clear()
