import pytest

from validator.report.orders import merged


@pytest.mark.parametrize(
    ("orders", "whole"),
    [
        ((), ""),
        (("abc",), "abc"),
        (("abc", "abc"), "abc"),
        (("ac", "abc"), "abc"),
        (("abc", "ac"), "abc"),
        (("bd", "abcde"), "abcde"),
        (("abxyc", "abpqc"), "abpqxyc"),
        (("ab", "bca"), "abc"),
        (("ab", "bac"), "abc"),
        (("ad", "abd", "abcd"), "abcd"),
        (("a", "bb"), "ba"),
    ],
)
def test_what_one_order_has_alone_stands_after_what_precedes_it_there(
    orders: tuple[str, ...], whole: str
) -> None:
    assert "".join(merged(orders)) == whole
