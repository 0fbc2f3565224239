"""What several equivalence tests compare with, loaded once."""

import pytest
from transformers import PreTrainedModel

from chairlift.config.model_source import resolve_model_source
from tests.equivalence.tiny_models import load_reference


@pytest.fixture(scope="session")
def embedded_reference() -> PreTrainedModel:
    """The embedded model, loaded by transformers in float32. Takes seconds, so it is shared."""
    return load_reference(resolve_model_source(None))
