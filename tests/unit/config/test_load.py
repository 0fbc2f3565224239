from dataclasses import FrozenInstanceError, fields, is_dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.config.load import coerce, load_settings
from chairlift.config.sections import SECTIONS
from chairlift.config.settings import SettingInfo, Settings, describe_settings, settings_by_name
from chairlift.errors import ConfigurationError


def load(values: dict[str, object] | None = None, **env: str) -> Settings:
    return load_settings(values, env)


def info(name: str) -> SettingInfo:
    return settings_by_name()[name]


def test_without_anything_every_setting_has_its_default() -> None:
    assert load() == Settings()


def test_given_values_win_over_the_environment_which_wins_over_defaults() -> None:
    settings = load({"port": 9000}, CHAIRLIFT_PORT="7000", CHAIRLIFT_HOST="0.0.0.0")
    assert settings.server.port == 9000
    assert settings.server.host == "0.0.0.0"
    assert settings.server.log_level == "info"


def test_none_means_not_given() -> None:
    assert load({"port": None}, CHAIRLIFT_PORT="7000").server.port == 7000


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load(CHAIRLIFT_API_KEY="").server.api_key is None


def test_the_process_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAIRLIFT_MAX_NUM_SEQS", "7")
    assert load_settings().scheduler.max_num_seqs == 7


@pytest.mark.parametrize(
    ("key", "section", "field"),
    [
        ("--max-running-requests", "scheduler", "max_num_seqs"),
        ("max-num-seqs", "scheduler", "max_num_seqs"),
        ("--chunked-prefill-size", "scheduler", "max_num_batched_tokens"),
        ("block_size", "cache", "page_size"),
        ("--Block-Size", "cache", "page_size"),
    ],
)
def test_flags_and_names_from_other_engines_are_understood(key: str, section: str, field: str) -> None:
    assert getattr(getattr(load({key: "96"}), section), field) == 96


def test_aliases_work_in_the_environment() -> None:
    assert load(CHAIRLIFT_MEM_FRACTION_STATIC="0.25").cache.gpu_memory_utilization == 0.25


def test_an_alias_given_with_another_value_than_its_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="block_size is another name of --page-size"):
        load({"page_size": 16, "block_size": 32})


def test_an_alias_given_with_the_same_value_is_fine() -> None:
    assert load({"page_size": 32, "block_size": "32"}).cache.page_size == 32


def test_a_value_wins_over_a_variable_that_uses_an_alias() -> None:
    assert load({"page_size": 32}, CHAIRLIFT_BLOCK_SIZE="8").cache.page_size == 32


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("max_num_seq", "max_num_seqs"), ("--kv-cache-memry", "kv_cache_memory"), ("frobnicate", None)],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(key: str, nearest: str | None) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load({key: 1})
    assert key in caught.value.message
    assert ("did you mean" in caught.value.message) == (nearest is not None)
    assert nearest is None or nearest in caught.value.message


def test_an_unknown_key_is_refused_even_without_a_value() -> None:
    with pytest.raises(ConfigurationError, match="no setting max_nun_seqs"):
        load({"max_nun_seqs": None})


def test_an_unknown_variable_is_refused_with_the_nearest_variable() -> None:
    with pytest.raises(ConfigurationError, match="CHAIRLIFT_MAX_SEQS; did you mean CHAIRLIFT_MAX_NUM_SEQS"):
        load(CHAIRLIFT_MAX_SEQS="3")


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("CHAIRLIFT_PORT", "tcp://10.0.0.7:8000"),
        ("CHAIRLIFT_SERVICE_HOST", "10.0.0.7"),
        ("CHAIRLIFT_SERVICE_PORT_HTTP", "8000"),
        ("CHAIRLIFT_PORT_8000_TCP_ADDR", "10.0.0.7"),
        ("CHAIRLIFT_CANARY_PORT", "TCP://10.0.0.8:80"),
    ],
)
def test_variables_that_kubernetes_makes_for_a_service_of_our_name_are_left_alone(variable: str, text: str) -> None:
    assert load_settings({}, {variable: text}) == Settings()


@pytest.mark.parametrize("text", ["1", "true", "Yes", "ON"])
def test_words_for_true(text: str) -> None:
    assert coerce(info("enable_prefix_caching"), text) is True


@pytest.mark.parametrize("text", ["0", "false", "No", "off"])
def test_words_for_false(text: str) -> None:
    assert coerce(info("enable_prefix_caching"), text) is False


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("port", "http", "--port must be a whole number, got 'http'"),
        ("seed", 10**40, f"--seed must be in [{-(2**63)}, {2**63 - 1}], got {10**40}"),
        ("max_model_len", 1, "--max-model-len must be at least 2, got 1"),
        ("port", True, "--port must be a whole number, got True"),
        ("port", 80.5, "--port must be a whole number, got 80.5"),
        ("port", 65536, "--port must be at most 65535, got 65536"),
        ("max_num_seqs", 0, "--max-num-seqs must be at least 1, got 0"),
        ("pipeline_depth", 3, "--pipeline-depth must be at most 2, got 3"),
        ("gpu_memory_utilization", "nan", "--gpu-memory-utilization must be a finite number, got 'nan'"),
        ("gpu_memory_utilization", "1.5", "--gpu-memory-utilization must be at most 1.0, got 1.5"),
        ("enable_prefix_caching", "maybe", "--enable-prefix-caching must be true or false, got 'maybe'"),
        ("enable_prefix_caching", 1, "--enable-prefix-caching must be true or false, got 1"),
        ("dtype", "fp8", "--dtype must be one of auto, float32, bfloat16; got 'fp8'"),
        ("api_key", "\udcff", "--api-key must be UTF-8, which these bytes are not"),
        ("host", 1.5, "--host must be text, got 1.5"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed_and_what_was_given(
    key: str, value: object, message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load({key: value})
    assert caught.value.message == message


def test_a_wrong_variable_is_named_as_such() -> None:
    with pytest.raises(ConfigurationError, match="CHAIRLIFT_PORT must be a whole number"):
        load(CHAIRLIFT_PORT="x")


def test_paths_and_byte_counts_become_text() -> None:
    settings = load({"model": Path("models") / "tiny", "kv_cache_memory": 2**30})
    assert settings.model.model == str(Path("models") / "tiny")
    assert settings.cache.kv_cache_memory == "1073741824"


def test_settings_are_frozen_all_the_way() -> None:
    settings = load()
    with pytest.raises(FrozenInstanceError):
        settings.server.port = 1  # type: ignore[misc]
    for field in fields(settings):
        section = getattr(settings, field.name)
        assert is_dataclass(section)
        assert section.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_the_key_is_in_no_representation() -> None:
    settings = load(CHAIRLIFT_API_KEY="hush")
    assert settings.server.api_key == "hush"
    assert "hush" not in repr(settings)


def test_every_section_is_part_of_the_settings_and_every_name_is_unique() -> None:
    assert {type(getattr(Settings(), field.name)) for field in fields(Settings)} == set(SECTIONS)
    names = [described.name for described in describe_settings()]
    assert len(names) == len(set(names))
    assert len(settings_by_name()) == len(names) + sum(len(d.aliases) for d in describe_settings())


def test_sections_are_small() -> None:
    assert max(len(fields(section)) for section in SECTIONS) <= 12


@pytest.mark.parametrize("described", describe_settings(), ids=lambda described: described.name)
def test_every_default_passes_its_own_checks(described: SettingInfo) -> None:
    assert described.help.endswith(".")
    if described.default is None:
        assert described.is_optional
    else:
        assert coerce(described, described.default) == described.default
        assert coerce(described, str(described.default)) == described.default


@given(st.sampled_from(describe_settings()), st.text() | st.integers() | st.floats() | st.booleans())
def test_anything_given_is_taken_as_the_declared_type_or_refused(described: SettingInfo, value: object) -> None:
    try:
        result = coerce(described, value)
    except ConfigurationError as error:
        message = error.message
    else:
        assert type(result) is described.kind
        return
    assert described.flag in message
