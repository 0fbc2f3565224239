"""What the executor keeps of each running request: tokens, page table and sampling parameters, one row per request.

Knows nothing of plans or tensors: plain NumPy columns, so that a step gathers all its rows at once.
"""

from collections.abc import Container

import numpy as np
from numpy.typing import NDArray

from chairlift.core.sampling_params import Pooling, SamplingParams
from chairlift.core.step_plan import NewRequest
from chairlift.errors import InvariantError
from chairlift.execution.torch_backend.token_edits import TokenEdits
from chairlift.structured.masks import GrammarState

SAMPLING_COLUMNS = np.dtype(
    [
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("repetition_penalty", np.float32),
        ("presence_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("top_k", np.int64),
        ("min_tokens", np.int64),
        ("num_prompt_tokens", np.int64),
        ("seed", np.uint64),
        ("logprobs", np.int64),  # alternatives wanted; NO_LOGPROBS where not even the token's own is
        ("prompt_logprobs", np.int64),
        ("pooling", np.int64),  # index in POOLINGS; as wide as others, for a record's size decides what torch can read
    ]
)
NO_LOGPROBS = -1
POOLINGS: tuple[Pooling | None, ...] = (None, "last", "mean")
PENALTIES, TOKEN_EDITS, MIN_TOKENS, GRAMMAR, LOGPROBS = (np.uint8(1 << bit) for bit in range(5))
"""What a request asks of its rows beside a draw: bits of :attr:`RequestTable.wishes`, most of which are 0."""
_COPIED = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


class RequestTable:
    """Rows are reused as soon as a request is removed; the table grows when more are alive than expected.

    Args:
        num_rows: running requests expected at once.
        num_tokens: tokens of one request expected at most.
        page_size: token slots of a page.
    """

    def __init__(self, num_rows: int, num_tokens: int, page_size: int) -> None:
        self.page_size = page_size
        self.token_ids: NDArray[np.int32] = np.zeros((num_rows, num_tokens), np.int32)  # [N, tokens]
        self.page_table: NDArray[np.int32] = np.zeros((num_rows, -(-num_tokens // page_size)), np.int32)
        self.num_pages: NDArray[np.int64] = np.zeros(num_rows, np.int64)
        self.num_computed: NDArray[np.int64] = np.zeros(num_rows, np.int64)
        self.sampling = np.zeros(num_rows, SAMPLING_COLUMNS)
        self.wishes: NDArray[np.uint8] = np.zeros(num_rows, np.uint8)
        self.stop_token_ids: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * num_rows
        self.edits: list[TokenEdits | None] = [None] * num_rows
        self.grammars: dict[int, GrammarState] = {}
        """By row, of the requests that follow one."""
        self._rows: dict[int, int] = {}
        self._free = list(range(num_rows - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._rows

    def row(self, request_id: int) -> int:
        """Return the row of a request.

        Raises:
            InvariantError: the plan names a request that no plan introduced.
        """
        try:
            return self._rows[request_id]
        except KeyError:
            raise InvariantError(f"a plan names request {request_id}, which the executor does not know") from None

    def clear(self) -> None:
        """Forget every request."""
        self._free.extend(self._rows.values())
        self._rows.clear()

    def add(self, new: NewRequest) -> None:
        """Take in a request; one that is already known is replaced."""
        self.remove(new.request_id)
        if not self._free:
            self._double_rows()
        row = self._rows[new.request_id] = self._free.pop()
        self.reserve_tokens(len(new.token_ids))
        self.token_ids[row, : len(new.token_ids)] = new.token_ids
        self.num_computed[row] = new.num_computed_tokens
        self.num_pages[row] = 0
        self._append_pages(row, new.pages)
        self.stop_token_ids[row] = np.array(sorted(new.stop_token_ids), np.int64)
        record = self.sampling[row]
        for name in _COPIED:
            record[name] = getattr(new.sampling, name)
        record["top_k"] = new.sampling.top_k
        record["min_tokens"] = new.sampling.min_tokens
        record["num_prompt_tokens"] = new.num_prompt_tokens
        record["seed"] = new.seed % 2**64
        self.edits[row] = TokenEdits.of(new.sampling)
        self.grammars.pop(row, None)
        if new.sampling.grammar is not None:
            self.grammars[row] = GrammarState(new.sampling.grammar)
        self.wishes[row] = _wishes(new.sampling)
        record["pooling"] = POOLINGS.index(new.sampling.pooling)
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(new.sampling, name)
            record[name] = NO_LOGPROBS if wanted is None else wanted

    def remove(self, request_id: int) -> None:
        """Forget one request, if it is known."""
        row = self._rows.pop(request_id, None)
        if row is not None:
            self._free.append(row)
            self.grammars.pop(row, None)

    def request_ids(self, rows: Container[int]) -> list[int]:
        """Requests in these rows."""
        return [request_id for request_id, row in self._rows.items() if row in rows]

    def grammar_failures(self) -> dict[int, str]:
        """Requests whose grammars have failed, and why."""
        states = [(request_id, self.grammars.get(row)) for request_id, row in self._rows.items()]
        return {
            request_id: state.failure for request_id, state in states if state is not None and state.failure is not None
        }

    def extend_pages(self, request_id: int, pages: tuple[int, ...]) -> None:
        """Append pages to a request's page table."""
        self._append_pages(self.row(request_id), pages)

    def reserve_tokens(self, num_tokens: int) -> None:
        """Make room for requests of ``num_tokens`` tokens."""
        self.token_ids = _widened(self.token_ids, num_tokens)

    def kv_slots(self, rows: NDArray[np.int64] | int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where in the KV pages the tokens at ``positions`` lie.

        Raises:
            InvariantError: a position lies behind the request's last page.
        """
        page_indices = positions // self.page_size
        if (page_indices >= self.num_pages[rows]).any():
            raise InvariantError("a plan computes a token for which its request has no page")
        return self.page_table[rows, page_indices].astype(np.int64) * self.page_size + positions % self.page_size

    def _append_pages(self, row: int, pages: tuple[int, ...]) -> None:
        start = int(self.num_pages[row])
        self.page_table = _widened(self.page_table, start + len(pages))
        self.page_table[row, start : start + len(pages)] = pages
        self.num_pages[row] = start + len(pages)

    def _double_rows(self) -> None:
        num_rows = len(self.num_pages)
        for name in ("token_ids", "page_table", "num_pages", "num_computed", "sampling", "wishes"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate((column, np.zeros_like(column))))
        self.stop_token_ids.extend([np.empty(0, np.int64)] * num_rows)
        self.edits.extend([None] * num_rows)
        self._free.extend(range(2 * num_rows - 1, num_rows - 1, -1))


def _wishes(sampling: SamplingParams) -> np.uint8:
    wished = {
        PENALTIES: sampling.has_penalties,
        TOKEN_EDITS: sampling.has_edits,
        MIN_TOKENS: sampling.min_tokens > 0,
        GRAMMAR: sampling.grammar is not None,
        LOGPROBS: sampling.logprobs is not None,
    }
    return np.bitwise_or.reduce([bit for bit, is_wished in wished.items() if is_wished] or [np.uint8(0)])


def _widened(table: NDArray[np.int32], width: int) -> NDArray[np.int32]:
    if width <= table.shape[1]:
        return table
    wider = np.zeros((table.shape[0], max(width, 2 * table.shape[1])), np.int32)
    wider[:, : table.shape[1]] = table
    return wider
