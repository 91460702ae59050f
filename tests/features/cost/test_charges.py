"""What the parts of GPU time cost adds up to what all GPUs cost, to the cent."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.cost.report import By, NoRateError, Rate, cents, rate_of, rows, total
from gpu_device_plugin.features.cost.rules import NOBODY, Account, Holder, Key, Part

WEB, JOB = Holder("ml", "Deployment", "web", "web-1"), Holder("ml", "Job", "train", "train-x")
RATES = [Rate("NVIDIA H100*", Fraction(5, 2)), Rate("*T4", Fraction(1, 3))]


def account_of(parts: dict[tuple[Holder, str, Part], Fraction]) -> Account:
    """Return an account with these GPU-hours."""
    seconds = {(Key(holder, model), part): value * 3600 for (holder, model, part), value in parts.items()}
    return Account(seconds, {}, {}, 1, stranded_known=True)


def test_the_first_rate_that_matches_counts_whatever_the_case() -> None:
    assert rate_of("nvidia h100 80GB HBM3", RATES) == Fraction(5, 2)
    assert rate_of("Tesla T4", [*RATES, Rate("*", Fraction(9))]) == Fraction(1, 3)


def test_a_model_without_rate_is_named_with_a_remedy() -> None:
    with pytest.raises(NoRateError, match=r"^there is no rate for the model 'A10'; add --rate 'A10=PRICE'$"):
        rate_of("A10", RATES)
    unknown = "^there is no rate for GPUs whose model is not known \\(no gpushare_gpu_info\\); add --rate '\\*=PRICE'$"
    with pytest.raises(NoRateError, match=unknown):
        rate_of("", RATES)


def test_a_third_of_a_dollar_is_divided_to_the_cent() -> None:
    """Three T4-hours cost a dollar: each third 33 cents, and one of them the cent that is left."""
    account = account_of({(holder, "Tesla T4", Part.USED): Fraction(1) for holder in (WEB, JOB, NOBODY)})
    assert sorted(cents(account, RATES).values()) == [33, 33, 34]


def test_holders_are_told_apart_by_namespace_owner_or_pod() -> None:
    other = WEB._replace(pod="web-2")
    account = account_of({(each, "Tesla T4", Part.IDLE): Fraction(n) for n, each in enumerate((WEB, other, JOB), 1)})
    assert [row.holder for row in rows(account, By.POD, {})] == [JOB, other, WEB]
    by_owner = [(row.holder.owner, row.hours(Part.IDLE)) for row in rows(account, By.OWNER, {})]
    assert by_owner == [("web", Fraction(3)), ("train", Fraction(3))]
    assert [(row.holder, row.hours(Part.IDLE)) for row in rows(account, By.NAMESPACE, {})] == [
        (Holder("ml"), Fraction(6))
    ]


def test_nobody_comes_last_and_models_have_rows_of_their_own_where_wanted() -> None:
    web = WEB._replace(pod="")
    account = account_of(
        {
            (NOBODY, "Tesla T4", Part.FREE): Fraction(9),
            (WEB, "A10", Part.USED): Fraction(1),
            (WEB, "Tesla T4", Part.USED): Fraction(2),
        }
    )
    assert [(row.holder, row.model) for row in rows(account, By.OWNER, {})] == [(web, ""), (NOBODY, "")]
    assert [(row.holder, row.model) for row in rows(account, By.OWNER, {}, models=True)] == [
        (web, "Tesla T4"),
        (web, "A10"),
        (NOBODY, "Tesla T4"),
    ]


def test_those_who_were_given_most_come_first_whether_they_used_it_or_not() -> None:
    account = account_of(
        {
            (WEB, "T4", Part.USED): Fraction(1),
            (JOB, "T4", Part.UNMEASURED): Fraction(3),
            (WEB, "T4", Part.IDLE): Fraction(1),
        }
    )
    assert [row.holder for row in rows(account, By.POD, {})] == [JOB, WEB]


def test_what_was_borrowed_and_the_energy_are_added_up() -> None:
    keys = [Key(WEB, "Tesla T4"), Key(WEB, "A10"), Key(JOB, "A10")]
    found = Account(
        {(key, Part.USED): Fraction(7200) for key in keys},
        dict.fromkeys(keys, Fraction(1800)),
        dict.fromkeys(keys, 9),
        1,
        stranded_known=True,
    )
    web, job = rows(found, By.POD, {})
    sums = {each.holder: (each.hours(*Part), each.borrowed, each.energy_mj) for each in (web, job, total([web, job]))}
    assert sums == {
        WEB: (Fraction(4), Fraction(3600), 18),
        JOB: (Fraction(2), Fraction(1800), 9),
        NOBODY: (Fraction(6), Fraction(5400), 27),
    }


PARTS = st.dictionaries(
    st.tuples(
        st.sampled_from([WEB, JOB, NOBODY]), st.sampled_from(["Tesla T4", "NVIDIA H100 NVL"]), st.sampled_from(Part)
    ),
    st.fractions(min_value=0, max_value=1000, max_denominator=97),
)


@given(
    parts=PARTS,
    price=st.fractions(min_value=0, max_value=100, max_denominator=1000),
    by=st.sampled_from(By),
    models=st.booleans(),
)
def test_the_sum_of_what_rows_cost_is_the_clusters_cost_to_the_cent(
    parts: dict[tuple[Holder, str, Part], Fraction], price: Fraction, by: By, *, models: bool
) -> None:
    account = account_of(parts)
    rates = [Rate("*H100*", price), Rate("*", Fraction(1, 3))]
    prices = cents(account, rates)
    exact = sum(
        (hours * (price if "H100" in model else Fraction(1, 3)) for (_, model, _), hours in parts.items()), Fraction()
    )
    found = rows(account, by, prices, models=models)
    assert sum(row.cost(*Part) for row in found) == total(found).cost(*Part) == round(exact * 100)
    for (holder, model, part), hours in parts.items():
        own = hours * (price if "H100" in model else Fraction(1, 3)) * 100
        assert abs(prices.get((Key(holder, model), part), 0) - own) < 1 + abs(round(exact * 100) - exact * 100)
