"""Amounts of memory in MiB, and the number and size of shares."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.gpus import Gpu
from gpu_device_plugin.model.memory import format_mib, parse_mib, shares_of, smallest_share_mib


def card(total_mib: int, *, reserved_mib: int = 0, mig: bool = False) -> Gpu:
    return Gpu("GPU-0", 0, "Tesla T4", total_mib, reserved_mib, mig=mig)


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("256MiB", 256),
        ("256Mi", 256),
        ("1GiB", 1024),
        ("1Gi", 1024),
        ("  2 GiB ", 2048),
        ("0MiB", 0),
        ("007MiB", 7),
        ("100000GiB", 102_400_000),
        ("999999999999MiB", 999_999_999_999),
    ],
)
def test_an_amount_of_memory_is_a_whole_number_with_a_binary_unit(text: str, mib: int) -> None:
    assert parse_mib(text) == mib


@pytest.mark.parametrize(
    "text",
    ["", "B", "1.5GiB", "1TiB", "-1GiB", "GiB", "1 GiB x", "x1GiB", "1GiB1GiB", "٣GiB", "1" * 13 + "MiB"],
)
def test_any_other_text_is_refused_with_an_example(text: str) -> None:
    expected = f"{text!r} is not an amount of memory; write it like 256MiB or 1GiB"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        parse_mib(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1GB", "did you mean 1GiB?"),
        ("1G", "did you mean 1GiB?"),
        ("1gib", "did you mean 1GiB?"),
        ("512 mb", "did you mean 512MiB?"),
        ("1024", "write its unit too: 1024MiB or 1024GiB"),
        ("1024B", "write its unit too: 1024MiB or 1024GiB"),
    ],
)
def test_almost_an_amount_of_memory_is_refused_with_a_hint(text: str, hint: str) -> None:
    """Decimal units are up to 7 % smaller, so the text is not converted silently."""
    with pytest.raises(ValueError, match=f"^{re.escape(f'{text!r} is not an amount of memory; {hint}')}$"):
        parse_mib(text)


@pytest.mark.parametrize(
    ("mib", "text"),
    [
        (0, "0 MiB"),
        (1, "1 MiB"),
        (300, "300 MiB"),
        (768, "768 MiB"),
        (1024, "1 GiB"),
        (1025, "1025 MiB"),
        (1280, "1.25 GiB"),
        (7680, "7.5 GiB"),
        (8192, "8 GiB"),
        (10_240, "10 GiB"),
        (143_771, "143771 MiB"),
        (-2048, "-2 GiB"),
        # Amounts that a pod may ask and no machine has.
        (10_000 * 1024 + 256, "10000.25 GiB"),
        (1_000_000 * 1024, "1000000 GiB"),
    ],
)
def test_memory_is_written_in_gib_where_that_is_exact_to_a_quarter(mib: int, text: str) -> None:
    assert format_mib(mib) == text


@given(st.integers(min_value=-(10**12), max_value=10**12))
def test_memory_is_never_rounded_for_people(mib: int) -> None:
    number, unit = format_mib(mib).split()
    assert float(number) * {"MiB": 1, "GiB": 1024}[unit] == mib


@pytest.mark.parametrize(
    ("gpu", "share_mib", "reserve_mib", "shares"),
    [
        # A T4: 15,360 MiB on the card, of which the driver keeps 450.
        (card(15_360), 1024, 0, 15),
        (card(15_360, reserved_mib=450), 1024, 0, 14),
        (card(15_360, reserved_mib=450), 256, 0, 58),
        # 15,360 - 450 - 600 = 14,310 = 13 x 1,024 + 998
        (card(15_360, reserved_mib=450), 1024, 600, 13),
        # An H200: 143,771 MiB.
        (card(143_771), 1024, 0, 140),
        (card(1023), 1024, 0, 0),
        (card(1024), 1024, 0, 1),
        (card(1024), 1024, 2048, 0),
        (card(1024), 1, 2048, 0),
        (card(15_360, mig=True), 1024, 0, 0),
    ],
)
def test_a_gpu_gives_whole_shares_of_its_unreserved_memory(
    gpu: Gpu, share_mib: int, reserve_mib: int, shares: int
) -> None:
    assert shares_of(gpu, share_mib, reserve_mib) == shares


@pytest.mark.parametrize(
    ("totals", "reserve_mib", "limit", "mib"),
    [
        # Eight H200: 1,120 shares at 1 GiB; 280 x 8 = 2,240 at 512 MiB; 561 x 8 = 4,488 at 256 MiB.
        ((143_771,) * 8, 0, 4000, 512),
        ((143_771,) * 8, 0, 4488, 256),
        ((143_771,) * 8, 0, 4487, 512),
        # One T4: 3,840 shares at 4 MiB, 7,680 at 2 MiB; at 1 MiB more than that.
        ((15_360,), 0, 4000, 4),
        # With 11,361 MiB kept back 3,999 are left, which are given out one by one.
        ((15_360,), 11_361, 4000, 1),
        ((15_360,), 11_360, 4000, 1),
        ((15_360,), 11_359, 4000, 2),
        ((), 0, 4000, 1),
        # Above the largest round size only a whole card is left to be a share.
        ((143_771, 15_360), 0, 1, 143_771),
        ((143_771,), 0, 2, 65_536),
    ],
)
def test_the_smallest_share_size_that_fits_is_a_round_one(
    totals: tuple[int, ...], reserve_mib: int, limit: int, mib: int
) -> None:
    assert smallest_share_mib((card(total) for total in totals), reserve_mib, limit) == mib


def test_by_default_about_four_thousand_shares_are_too_many() -> None:
    """4,001 MiB give 4,001 shares of 1 MiB, one too many; 2,000 of 2 MiB. 4,000 MiB give just so many."""
    assert (smallest_share_mib([card(4001)]), smallest_share_mib([card(4000)])) == (2, 1)
