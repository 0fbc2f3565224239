"""Says in the log what an engine that has become ready serves, and what of it will not fit.

Knows nothing of processes or requests.
"""

import logging

from chairlift.engine.messages import ModelInfo

_logger = logging.getLogger(__name__)


def log_ready(info: ModelInfo) -> None:
    """Log one line, and a warning if no request can be as long as the settings allow."""
    _logger.info(
        "%s is ready: %s; %d slots, %d tokens per step",
        *(info.name, info.description, info.max_num_seqs, info.max_num_batched_tokens),
    )
    if info.num_token_slots < info.max_model_len:
        _logger.warning(
            "the KV memory holds %d tokens, fewer than --max-model-len %d: longer requests are refused or cut off; "
            "raise --kv-cache-memory",
            *(info.num_token_slots, info.max_model_len),
        )
