"""Text from tokens that arrive one by one.

Knows nothing of stop strings or requests.
"""

import codecs
from collections.abc import Collection, Sequence

from chairlift.tokenization.pieces import PieceTable

_MAX_BYTES_PER_CHARACTER = 4


class IncrementalDetokenizer:
    """Turns one choice's tokens into text, giving out only whole characters.

    The texts of all :meth:`push` calls and of :meth:`flush`, joined, are what decoding all tokens at once gives. A
    push costs the same however long the text is. U+FFFD appears only for bytes that can never become a character.
    """

    __slots__ = ("_is_first", "_num_leading", "_pieces", "_skipped_ids", "_utf8")

    def __init__(
        self, pieces: PieceTable, skipped_ids: Collection[int] = frozenset(), prompt_ids: Sequence[int] = ()
    ) -> None:
        self._pieces = pieces
        self._skipped_ids = skipped_ids
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_first = True
        self._num_leading = pieces.num_leading
        self._read_prompt(prompt_ids)

    def push(self, token_id: int) -> str:
        """Take a token; return the text that is final now, empty in the middle of a character."""
        if token_id in self._skipped_ids:
            return ""
        piece = self._pieces.piece(token_id, is_first=self._is_first)
        self._is_first = False
        text = self._utf8.decode(piece)
        return self._without_lead(text) if self._num_leading else text

    def flush(self) -> str:
        """Return what is left when no more tokens come: nothing, or U+FFFD for a character cut off."""
        text = self._utf8.decode(b"", True)
        return self._without_lead(text) if self._num_leading else text

    def _without_lead(self, text: str) -> str:
        for index, character in enumerate(text):
            if self._num_leading == 0 or character != self._pieces.lead:
                self._num_leading = 0
                return text[index:]
            self._num_leading -= 1
        return ""

    def _read_prompt(self, prompt_ids: Sequence[int]) -> None:
        """Be in the state after the prompt without reading all of it.

        ::

            [ until the front of the text is settled | skipped | last bytes: may begin a character ) output
        """
        num_read = 0
        while num_read < len(prompt_ids) and (self._is_first or self._num_leading):
            self.push(prompt_ids[num_read])
            num_read += 1
        tail = b""
        for index in range(len(prompt_ids) - 1, num_read - 1, -1):
            if prompt_ids[index] not in self._skipped_ids:
                tail = self._pieces.piece(prompt_ids[index]) + tail
            if len(tail) >= _MAX_BYTES_PER_CHARACTER:
                break
        self._utf8.decode(tail)
