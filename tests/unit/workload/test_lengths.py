"""The workloads are those that other engines were measured with."""

from statistics import mean

from chairlift.workload.lengths import make_article, make_uniform, make_w1


def test_w1_has_the_published_totals():
    items = make_w1(128)
    assert sum(len(item.prompt_token_ids) for item in items) == 18_638
    assert sum(item.num_output_tokens for item in items) == 13_800
    assert sorted(len(item.prompt_token_ids) for item in items)[64] == 102
    assert max(len(item.prompt_token_ids) for item in items) == 706
    assert max(item.num_output_tokens for item in items) == 512
    assert make_w1(8) == items[:8]


def test_uniform_lengths_have_the_same_mean():
    items, heavy = make_uniform(64), make_w1(64)
    assert len({item.num_output_tokens for item in items}) == 1
    assert abs(items[0].num_output_tokens - mean(item.num_output_tokens for item in heavy)) < 1


def test_the_articles_lengths():
    outputs = sorted(item.num_output_tokens for item in make_article(4000))
    assert 17 <= outputs[2000] <= 23
    assert 300 <= outputs[3960] <= 450
    assert outputs[-1] <= 512
