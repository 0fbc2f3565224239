"""Accounts of tenants: few labels, and none that means two things."""

import pytest

from chairlift.config.resolved import TenantTable
from chairlift.observability.accounts import Accounts
from chairlift.observability.metrics import Metrics


@pytest.mark.parametrize("name", ["default", "other"])
def test_a_client_that_calls_itself_like_a_label_with_its_own_meaning_is_one_of_the_others(name):
    accounts = Accounts(Metrics(), TenantTable())
    nameless = accounts.find(0, "", now_ns=0)
    named = accounts.find(0, name, now_ns=0)
    assert nameless.tenant == "default"
    assert named.tenant == "other"
    assert accounts.find(0, "somebody", now_ns=0).tenant == "somebody"
