from benchmarks.claims import long_runners


def test_quanta_halve_the_time_to_first_token_between_long_runners():
    found = long_runners.measure(70, load=long_runners.Load(slots=16, chat_per_s=2.0, long_per_s=0.35))
    assert found.fcfs.ttft_p95_s > 5.0, "slots are full of long runners"
    assert found.part <= 0.5
    assert found.preemptive.output_tokens_per_s > 0.95 * found.fcfs.output_tokens_per_s
    assert found.holds
