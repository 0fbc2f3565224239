"""Prompts of wanted lengths: token ids, or words where a server takes only text.

Knows nothing of tokenizers. Words are common ones of which most vocabularies have each as one token; how many tokens a
server makes of them is asked before (:mod:`~.probe`), and how many it made is in its answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from chairlift.benchmark.calls import Exchange
from chairlift.workload.items import MAX_CONTENT_ID, ContentRun, WorkRequest, distinct_prompt
from chairlift.workload.lengths import FIRST_TOKEN_ID

_COMMON = """
    the of and to in is that for it as was with be by on not he his but at are this have from or had an they which
    one you were all her she there would their we him been has when who will no more if out so up said what its about
    than into them can only other time new some could these two may first then do any like my now over such our man me
    even most made after also did many off before must well back through years where much your way down should because
    long each just state those people too mr how little good world make very year still see work life being under day
    same use men might here own water old take come light small night hand high part without place find around house
    give another came last us great think end while few always home against again three need once set right face
    number head far left course put found something fact look side young mind during across both whole though against
    never white less school four form done early open line word upon second later money run book war street half air
    want car city large group body point free power public order really best area table
"""
WORDS = tuple(_COMMON.split())

_RUN_SALT = 1_000_003
_SPREAD = 2_654_435_761


@dataclass(frozen=True, slots=True)
class TextScale:
    """How a server counts text: tokens of a prompt of n words are ``overhead_tokens + n * tokens_per_word``."""

    tokens_per_word: float = 1.0
    overhead_tokens: float = 0.0

    def num_words(self, num_tokens: int) -> int:
        """Return how many words make a prompt of that many tokens, overhead included."""
        return max(1, round((num_tokens - self.overhead_tokens) / self.tokens_per_word))


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Prompts begin with one of ``count`` prefixes, in turn, of ``num_tokens`` each."""

    count: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePrompts:
    """Prompts as long as the workload says, which begin alike exactly where its requests say so.

    Args:
        vocab_size: ids are below this; ``None`` makes text.
        scale: how the server counts words.
        prefixes: what comes before each prompt.
        salt: prompts of another salt are others, so that a cache that is still warm finds nothing.
    """

    vocab_size: int | None
    scale: TextScale = TextScale()
    prefixes: SharedPrefixes | None = None
    salt: int = 0

    def exchange(self, request: WorkRequest, number: int) -> Exchange:
        """Return the request's prompt."""
        own_id = MAX_CONTENT_ID - number
        runs = request.runs or (ContentRun(own_id, request.num_prompt_tokens),)
        if self.prefixes is not None and self.prefixes.num_tokens:
            prefix = ContentRun(1 + number % self.prefixes.count, self.prefixes.num_tokens)
            runs = (prefix, *runs)
        salted = [run._replace(content_id=self._salted(run.content_id or own_id)) for run in runs]
        if self.vocab_size is not None:
            span = self.vocab_size - FIRST_TOKEN_ID
            tokens = distinct_prompt(request._replace(runs=salted), number, span)
            return Exchange(([token + FIRST_TOKEN_ID for token in tokens],))
        words = distinct_prompt(request._replace(runs=self._in_words(salted)), number, len(WORDS))
        return Exchange((" ".join(WORDS[word] for word in words),))

    def _salted(self, content_id: int) -> int:
        return 1 + (content_id + self.salt * _RUN_SALT) * _SPREAD % MAX_CONTENT_ID

    def _in_words(self, runs: Sequence[ContentRun]) -> list[ContentRun]:
        """Give runs as many words as make their tokens; where one ends is rounded from the start, as for its sharers.

        ::

            tokens   0 ......... 512 ......... 1024 ...... 1100
            words    0 .... 394 ......... 788 ......... 846
        """
        scaled: list[ContentRun] = []
        tokens, words = 0, 0
        for run in runs:
            tokens += run.num_tokens
            upto = max(words, self.scale.num_words(tokens))
            scaled.append(run._replace(num_tokens=upto - words))
            words = upto
        return scaled


def make_text(num_tokens: int, scale: TextScale, rng: Random) -> str:
    """Return random words that make about so many tokens."""
    return " ".join(rng.choice(WORDS) for _ in range(max(1, round(num_tokens / scale.tokens_per_word))))
