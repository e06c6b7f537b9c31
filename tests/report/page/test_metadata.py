from dataclasses import replace
from typing import Any

from validator.checks.findings import Outcome
from validator.report.page.metadata import facts_of
from validator.report.page.rendering import to_html


def test_metadata_of_both_sides_stand_side_by_side_and_differences_are_marked(divergent: Outcome) -> None:
    run: dict[str, Any] = {
        "reference": {
            "software": {"torch": "2.10"},
            "hardware": [{"cpu": "a"}],
            "seeds": [1, 2],
            "only": None,
        },
        "candidate": {
            "software": {"torch": "2.11"},
            "hardware": [{"cpu": "a"}, {"cpu": "b"}],
            "seeds": [1, 2],
        },
    }
    facts = {f.name: (f.reference, f.candidate, f.differs) for f in facts_of(replace(divergent, run=run))}
    assert facts == {
        "software.torch": ("2.10", "2.11", True),
        "hardware[0].cpu": ("a", "a", False),
        "seeds": ("1, 2", "1, 2", False),
        "only": ("-", "-", False),
        "hardware[1].cpu": ("-", "b", True),
    }
    page = to_html(replace(divergent, run=run))
    assert page.count('aria-label="differs"') == 2
