from benchmarks.claims import long_prompts


def test_a_burst_of_long_prompts_does_not_empty_the_machine():
    found = long_prompts.measure(70, long_prompts.capacity(num_requests=500), burst_s=20.0)
    assert found.lowest_part >= long_prompts.LEAST_PART
    assert found.num_unfinished == 0
    assert found.long_ttft_max_s < 30.0, "nor do the long ones wait for what nobody would give them"
    assert found.holds
