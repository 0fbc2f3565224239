"""Text to tokens and back: tokenizers, incremental detokenization, chat templates and stop strings.

Knows nothing of requests, the scheduler or the model's weights.
"""

from chairlift.tokenization.detokenizer import IncrementalDetokenizer
from chairlift.tokenization.load import load_tokenizer
from chairlift.tokenization.stop_strings import StopChecker, StopResult
from chairlift.tokenization.tokenizer import Tokenizer

__all__ = ["IncrementalDetokenizer", "StopChecker", "StopResult", "Tokenizer", "load_tokenizer"]
