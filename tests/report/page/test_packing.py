import base64
import gzip
import json

import pytest

from validator.report.page.packing import packed, packed_data, packed_plotly


def unpacked(text: str) -> str:
    return gzip.decompress(base64.b64decode(text)).decode()


@pytest.mark.parametrize("text", ["", "</script><!--", "🦙\u2028\u202e", "x" * 10_000])
def test_what_is_packed_comes_out_again_and_has_no_letter_that_html_reads(text: str) -> None:
    made = packed(text)
    assert unpacked(made) == text
    assert not set(made) & set("<>&'\"")


def test_data_is_strict_json() -> None:
    assert json.loads(unpacked(packed_data({"a": [1, None, "é"]}))) == {"a": [1, None, "é"]}
    with pytest.raises(ValueError, match="Out of range float values"):
        packed_data([float("inf")])


def test_the_library_is_packed_to_less_than_half() -> None:
    made = packed_plotly()
    assert "plotly.js" in unpacked(made)[:200]
    assert len(made) < 2_100_000
