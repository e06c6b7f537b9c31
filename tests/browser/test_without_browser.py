"""Where there is no browser its tests say so: they are skipped, or fail where one is demanded."""

import pytest

from tests.browser.conftest import without


def test_without_a_browser_a_test_is_skipped_and_fails_where_one_is_demanded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("VALIDATOR_NEEDS_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Chromium"):
        without("no Chromium")
    monkeypatch.setenv("VALIDATOR_NEEDS_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="no Chromium, and VALIDATOR_NEEDS_BROWSER is set"):
        without("no Chromium")
