"""How much work a request still is, in tokens and in time, as far as anybody can tell.

Knows nothing of queues; it puts the learnt output lengths and the learnt step times together.
"""

from chairlift.core.length_predictor import LengthPredictor
from chairlift.core.step_latency import StepLatencyModel
from chairlift.core.views import RequestView


class WorkEstimate:
    """Estimates for one request at a time.

    Times are what the request would need if it had the machine to itself, so they are never too long for want of
    knowledge of the others; they are 0 before the latency model has seen enough steps.
    """

    def __init__(self, lengths: LengthPredictor, latency: StepLatencyModel) -> None:
        self._lengths = lengths
        self._latency = latency

    def remaining_outputs(self, request: RequestView) -> int:
        """Return the output tokens it is expected to want yet."""
        return self._lengths.predict_remaining(request.tenant, request.num_output_tokens, request.max_tokens)

    def prefill_ns(self, num_tokens: int, num_cached_tokens: int) -> int:
        """Return the time from its start to its next token; ``num_cached_tokens`` of its tokens are there already."""
        length = num_tokens - num_cached_tokens
        context = length * num_cached_tokens + length * (length + 1) // 2
        return self._latency.predict_ns(length, context)

    def to_last_token_ns(self, request: RequestView, num_cached_tokens: int) -> int:
        """Return the time from its start to its last token, alone in every step and as long as it is expected to be."""
        num_tokens = request.num_tokens
        per_token_ns = self._latency.predict_ns(1, num_tokens)
        return self.prefill_ns(num_tokens, num_cached_tokens) + per_token_ns * max(
            self.remaining_outputs(request) - 1, 0
        )
