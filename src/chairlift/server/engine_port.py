"""What the server needs of an engine and its tokenizer, and no more.

Knows nothing of processes or schedulers; :class:`chairlift.engine.async_engine.AsyncEngine` fits, and so does a stub.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from chairlift.config.resolved import TenantTable
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.messages import Listed, RequestStatus
from chairlift.engine.outputs import ChoiceDelta
from chairlift.engine.terms import Terms
from chairlift.engine.tokenizer import Detokenizer
from chairlift.errors import OverloadedError


class ModelFacts(Protocol):
    """What there is to say about the model being served."""

    @property
    def name(self) -> str:
        """Name that clients ask for."""
        ...

    @property
    def max_model_len(self) -> int:
        """Prompt plus output tokens of one request at most."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids are in ``[0, vocab_size)``."""
        ...

    @property
    def embedding_size(self) -> int:
        """Numbers of a text's vector."""
        ...


class TextCodec(Protocol):
    """Text to token ids and back, and chat messages to text."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are no text."""
        ...

    @property
    def chat_template_text(self) -> str:
        """The model's chat templates, as they are written."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that a token adds to a text."""
        ...

    def detokenizer(self, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> Detokenizer:
        """What turns tokens into text one by one."""
        ...

    def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """One prompt text for a conversation, to be encoded without special tokens.

        Raises:
            InvalidRequestError: the model has no template, or it refuses these messages.
        """
        ...


class TokenStream(Protocol):
    """One accepted request."""

    def __aiter__(self) -> AsyncIterator[ChoiceDelta]:
        """Deltas of all choices as they come; raises ``EngineDiedError`` if the engine dies midway."""
        ...

    @property
    def live_choices(self) -> list[tuple[int, int]]:
        """Index of each choice that has not ended, and the id under which the engine explains it."""
        ...

    def abort(self) -> None:
        """End the request now and free what it holds; does nothing once it has ended."""
        ...


class MetricsPage(Protocol):
    """All metrics at once."""

    def render(self) -> bytes:
        """Values in Prometheus' text format."""
        ...


class Engine(Protocol):
    """Something that generates tokens."""

    @property
    def metrics(self) -> MetricsPage:
        """What the engine counts."""
        ...

    @property
    def is_healthy(self) -> bool:
        """Whether requests can be served."""
        ...

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused because the server is about to stop."""
        ...

    @property
    def tokenizer(self) -> TextCodec:
        """The model's tokenizer."""
        ...

    @property
    def model_info(self) -> ModelFacts:
        """The model's facts."""
        ...

    @property
    def tenants(self) -> TenantTable:
        """What each tenant may have now."""
        ...

    @property
    def may_turn_away(self) -> bool:
        """Whether :meth:`turn_away` would refuse anybody now."""
        ...

    def turn_away(self, terms: Terms, num_choices: int) -> OverloadedError | None:
        """The refusal of a request that is refused whatever its prompt, which is then counted; ``None`` if it is not
        known to be one.
        """
        ...

    async def submit(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams, terms: Terms | None = None
    ) -> TokenStream:
        """Hand in a request and wait until it is accepted; cancelling the wait leaves nothing behind.

        Raises:
            InvalidRequestError: it can never run.
            OverloadedError: too much is waiting already, or the engine is draining.
            EngineDownError: the engine is down.
            EngineDiedError: it died before it had accepted.
        """
        ...

    async def explain(self, request_ids: Sequence[int]) -> Sequence[RequestStatus | None]:
        """Say of each choice what it waits for; ``None`` for those that are not alive.

        Raises:
            EngineUnavailableError: the engine is down.
        """
        ...

    async def list_requests(self, limit: int) -> Listed:
        """Say who runs and who is first in the queue, at most so many of each.

        Raises:
            EngineUnavailableError: the engine is down.
        """
        ...

    async def configure(self, changes: Mapping[str, object]) -> Mapping[str, object]:
        """Change settings, all or none, and return every changeable one as it is now; without changes only ask.

        Raises:
            InvalidRequestError: a change is not possible; nothing was changed.
            EngineUnavailableError: the engine is down.
        """
        ...

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; false, and nothing done, while any request is alive.

        Raises:
            EngineUnavailableError: the engine is down.
        """
        ...


class ManagedEngine(Engine, Protocol):
    """An engine with a life of its own, as the process that owns it sees it."""

    async def start(self) -> None:
        """Load the model and begin to serve."""
        ...

    async def stop(self, drain_timeout_s: float, *, in_hurry: bool = False) -> None:
        """Take nothing new, give running requests this long to end, then stop; in a hurry wait for no step."""
        ...
