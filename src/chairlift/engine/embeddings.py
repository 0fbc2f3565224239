"""From a model's vector to the one that is answered: cut, and scaled to length 1.

Knows nothing of how vectors are computed or sent.
"""

import numpy as np
from numpy.typing import NDArray

from chairlift.core.sampling_params import Pooling, SamplingParams
from chairlift.errors import InvalidRequestError

FLOAT = np.dtype("<f4")
"""Numbers of a vector as executors give it, and as base64 has them."""


def pooling_params(pooling: str) -> SamplingParams:
    """What is asked of the engine for a vector.

    Raises:
        InvalidRequestError: there is no such pooling.
    """
    known: dict[str, Pooling] = {"last": "last", "mean": "mean"}
    if pooling not in known:
        raise InvalidRequestError(f"pooling must be one of {', '.join(known)}, got {pooling!r}", param="pooling")
    return SamplingParams(pooling=known[pooling], max_tokens=None, detokenize=False)


def check_dimensions(dimensions: int | None, embedding_size: int, *, is_matryoshka: bool) -> None:
    """Refuse dimensions that the model's vectors cannot be cut to.

    Raises:
        InvalidRequestError: there are not so many, or nobody said that the first of them alone make sense.
    """
    if dimensions is None or dimensions == embedding_size:
        return
    if not 1 <= dimensions <= embedding_size:
        raise InvalidRequestError(
            f"dimensions is {dimensions}, but the model's vectors have {embedding_size}", param="dimensions"
        )
    if not is_matryoshka:
        raise InvalidRequestError(
            f"dimensions is {dimensions}, but the model's vectors have {embedding_size} and may not be cut: "
            "--matryoshka allows it for models that were trained for it",
            param="dimensions",
        )


def shape_embedding(
    embedding: bytes, dimensions: int | None = None, *, is_normalized: bool = True
) -> NDArray[np.float32]:
    """Return the first so many numbers of a vector, all if absent, scaled to length 1 unless that is not wanted."""
    vector = np.frombuffer(embedding, FLOAT)[:dimensions]
    if is_normalized:
        length = float(np.linalg.norm(vector.astype(np.float64)))
        if length > 0:
            return (vector / length).astype(FLOAT)
    return vector
