from benchmarks.claims import tiers


def test_batch_work_at_twice_capacity_costs_the_chat_two_steps_and_fills_what_it_leaves_idle():
    found = tiers.measure(400)
    assert found.tiers.ttft_p99_ms <= found.most_ttft_ms
    assert found.tiers.batch_part >= tiers.LEAST_BATCH_PART
    assert found.holds
    assert found.fcfs.ttft_p99_ms > 10 * found.most_ttft_ms, "the load is one at which tiers matter"
