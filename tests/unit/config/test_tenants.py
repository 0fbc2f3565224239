from pathlib import Path

import pytest

from chairlift.config.load import load_tenants
from chairlift.config.resolved import DEFAULT_TENANT, TenantConfig
from chairlift.config.tenants import Tenants, change_tenant
from chairlift.errors import ConfigurationError

SECRET = "sk-not-to-be-seen"

WHOLE = """
[default]
weight = 0.5
max_num_queued_reqs = 10

[tenants.search]
keys = ["sk-plain", { value = "sk-value" }, { env = "SEARCH_KEY" }, { file = "search.key" }]
weight = 2
max_num_queued_tokens = 1_000
max_kv_pages = 20
most_urgent_tier = -1

[tenants.batch]
most_urgent_tier = 3
"""


def load(tmp_path: Path, text: str, **env: str) -> Tenants:
    file = tmp_path / "tenants.toml"
    file.write_text(text)
    return load_tenants(str(file), env)


def test_keys_come_from_the_file_the_environment_and_other_files(tmp_path: Path) -> None:
    (tmp_path / "search.key").write_text("sk-filed\n")
    tenants = load(tmp_path, WHOLE, SEARCH_KEY="sk-env")
    assert [(key.tenant, key.value) for key in tenants.keys] == [
        ("search", "sk-plain"),
        ("search", "sk-value"),
        ("search", "sk-env"),
        ("search", "sk-filed"),
    ]
    assert tenants.names_with_keys == {"search"}


def test_a_table_differs_from_the_default_table_only_where_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "search.key").write_text("sk-filed")
    table = load(tmp_path, WHOLE, SEARCH_KEY="sk-env").table
    assert table.default == TenantConfig(weight=0.5, max_num_queued_reqs=10)
    assert table.find("search") == TenantConfig(
        weight=2.0, max_num_queued_reqs=10, max_num_queued_tokens=1000, max_kv_pages=20, most_urgent_tier=-1
    )
    assert table.find("batch") == TenantConfig(weight=0.5, max_num_queued_reqs=10, most_urgent_tier=3)
    assert table.find("anybody") == table.find("") == table.default


def test_without_a_file_everybody_is_the_default_tenant() -> None:
    tenants = load_tenants(None, {})
    assert (tenants.keys, tenants.table.find("x")) == ((), DEFAULT_TENANT)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tenant.a]", "has no 'tenant'; did you mean tenants?"),
        ("[tenants.a]\nwieght = 1", "[tenants.a] has no 'wieght'; did you mean weight?"),
        ("[default]\nkeys = ['x']", "[default] has no 'keys'"),
        ("[tenants.a]\nweight = 0", "[tenants.a] weight must be a positive number, got 0"),
        ("[tenants.a]\nweight = nan", "weight must be a positive number, got nan"),
        ("[tenants.a]\nweight = true", "weight must be a positive number, got True"),
        (f"[tenants.a]\nweight = 1{'0' * 400}", "[tenants.a] weight must be a positive number, got 1000"),
        ("[tenants.a]\nweight = 1e300", "got 1e+300; possible are 1e-06 to 1e+06"),
        ("[tenants.a]\nweight = 5e-324", "got 5e-324; possible are 1e-06 to 1e+06"),
        (f"[tenants.a]\nweight = 1{'0' * 5000}", "is not TOML"),
        (f"a = {'[' * 20_000}", "is not TOML: it is nested too deeply"),
        (f"a = {'9' * 5000}", "is not TOML: a number has too many digits"),
        (f"[tenants.a]\nweight = 0x1{'0' * 5000}", "must be a positive number, got a number of too many digits"),
        (f"[tenants.a]\nmax_kv_pages = 0x1{'0' * 5000}", "got a number of too many digits"),
        ("".join(f"[tenants.t{n}]\n" for n in range(10_001)), "10001 tenants are configured, and 10000 is the limit"),
        ("[tenants.a]\nmax_num_queued_reqs = -1", "max_num_queued_reqs must be a whole number in [0, "),
        ("[tenants.a]\nmax_kv_pages = 0", "max_kv_pages must be a whole number in [1, "),
        ("[tenants.a]\nmost_urgent_tier = 1.5", "most_urgent_tier must be a whole number"),
        ("[tenants.other]", "'other' is no tenant's name"),
        ('[tenants."a\\nb"]', "printable"),
        (f"[tenants.{'a' * 65}]", "1 to 64 printable"),
        ("tenants = 3", "[tenants] must be a table"),
        ("[tenants.a\n", "is not TOML"),
    ],
)
def test_what_cannot_work_is_refused_with_file_table_and_field(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)
    assert said in caught.value.message
    assert "tenants.toml" in caught.value.message


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (f"'{SECRET}'", "keys must be a list"),
        (f"['{SECRET} {SECRET}']", "no white space"),
        (f"[{{ value = '{SECRET}', env = 'X' }}]", "exactly one of value, env, file and nothing else, has 2"),
        (f"[{{ '{SECRET}' = 'x' }}]", "exactly one of value, env, file and nothing else, has 1"),
        (f"[{{ values = '{SECRET}' }}]", "exactly one of value, env, file and nothing else"),
        ("[{ env = 'UNSET' }]", "the environment variable UNSET is not set"),
        ("[{ env = 3 }]", "env must be text"),
        ("[{ file = 'missing' }]", "cannot be read: No such file"),
        ("[{ file = 'a\0b' }]".replace("\0", "\\u0000").replace("'", '"'), "is no name of a file"),
        ("[{ file = '~nobody-of-this-name/key' }]", "there is no home folder"),
        ("['']", "a key must have characters"),
        ("[3]", "keys[0] must be a key or a table"),
        (f"['{SECRET}', '{SECRET}']", "list the same key"),
    ],
)
def test_a_key_that_cannot_work_is_refused_without_being_shown(tmp_path: Path, keys: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, f"[tenants.a]\nkeys = {keys}")
    assert said in caught.value.message
    assert SECRET not in caught.value.message


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text("\ufeff[tenants.a]\nweight = 2\n", encoding="utf-8")
    assert load_tenants(str(file), {}).table.by_name["a"].weight == 2


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_tenants(str(tmp_path / "none.toml"), {})
    (tmp_path / "binary.key").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="is not UTF-8"):
        load(tmp_path, "[tenants.a]\nkeys = [{ file = 'binary.key' }]")


def test_one_key_names_one_tenant(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"\[tenants.a\] and \[tenants.b\] list the same key"):
        load(tmp_path, f"[tenants.a]\nkeys=['{SECRET}']\n[tenants.b]\nkeys=['{SECRET}']")


def test_keys_are_in_no_representation(tmp_path: Path) -> None:
    tenants = load(tmp_path, f"[tenants.a]\nkeys = ['{SECRET}']")
    assert tenants.keys[0].value == SECRET
    assert SECRET not in repr(tenants) + repr(tenants.keys)


def test_a_cap_is_taken_away_by_none() -> None:
    capped = TenantConfig(max_num_queued_reqs=3, max_kv_pages=4)
    assert change_tenant(capped, {"max_num_queued_reqs": None}, "x") == TenantConfig(max_kv_pages=4)
