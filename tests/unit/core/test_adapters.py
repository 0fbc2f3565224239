"""Requests with adapters at the scheduler's level: what they share, and that any mix of them ends.

Adapters are named by their content here; nothing loads weights yet, so there is no cap on how many run together.
"""

import random

from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from tests.harness import Rig

PROMPT = [(7 * i) % 40 for i in range(24)]


def add(
    rig: Rig, request_id: int, adapter: str | None, *, prompt: list[int] | None = None, max_tokens: int = 4
) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    request = Request(request_id, PROMPT if prompt is None else prompt, sampling, adapter=adapter)
    rig.scheduler.add(request, rig.num_steps)
    return request


def test_b24_adapters_of_one_name_and_other_content_share_no_pages() -> None:
    rig = Rig(num_pages=64)
    cached: list[int | None] = []
    for request_id, adapter in enumerate(["a:weights-1", "a:weights-2", "a:weights-1", None]):
        request = add(rig, request_id, adapter)
        rig.run()
        cached.append(request.num_cached_tokens)
    assert cached == [0, 0, 20, 0]
    assert rig.output[0] == rig.output[1] == rig.output[2]


def test_b28_any_mix_of_adapters_base_and_aborts_ends_and_leaves_nothing() -> None:
    chance = random.Random(28)
    for depth in (1, 2):
        rig = Rig(num_pages=40, depth=depth, max_num_seqs=4)
        ended = set[int]()
        for request_id in range(60):
            prompt = [chance.randrange(40) for _ in range(chance.randrange(1, 60))]
            add(
                rig,
                request_id,
                chance.choice([None, "l1", "l2", "l3"]),
                prompt=prompt,
                max_tokens=chance.randrange(1, 20),
            )
            for _ in range(chance.randrange(3)):
                rig.step()
            if chance.random() < 0.3:
                target = chance.randrange(request_id + 1)
                if rig.scheduler.abort(target):
                    ended.add(target)
        rig.run()
        assert ended | rig.finished.keys() == set(range(60))
