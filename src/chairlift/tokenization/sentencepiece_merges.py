"""The merges that a scored SentencePiece vocabulary implies.

Knows nothing of files.
"""

from collections.abc import Mapping, Sequence


def derive_merges(ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """List every way to make a token from two others, best first.

    SentencePiece always joins the neighbours whose union has the highest score. Ways to the same token are ordered as
    Hugging Face's converter does, so that both give the same tokens.
    """
    merges: list[tuple[float, int, int, int, int, str, str]] = []
    for order, (text, token_id) in enumerate(ids.items()):
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            left_id, right_id = ids.get(left), ids.get(right)
            if left_id is not None and right_id is not None:
                merges.append((-scores[token_id], -len(left), -len(right), order, left_id, left, right))
    merges.sort(key=lambda merge: merge[:5])
    return [(left, right) for *_, left, right in merges]
