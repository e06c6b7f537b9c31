"""Sample files of evaluations are read, and what the candidate does worse comes first."""

import json
from pathlib import Path
from typing import Any

import pytest

from validator.errors import UsageError
from validator.scoring.samples import ranked, read_files, read_pairs, read_samples


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def question(doc_id: int, acc: float, likelihoods: list[float], **more: Any) -> dict[str, Any]:
    """Return a multiple-choice question as lm-eval writes it."""
    return {
        "doc_id": doc_id,
        "doc": {"question": "?"},
        "target": 0,
        "arguments": [[f"Question {doc_id}: ", f"answer {i}"] for i in range(len(likelihoods))],
        "resps": [[[str(value), "False"]] for value in likelihoods],
        "filtered_resps": [[str(value), "False"] for value in likelihoods],
        "doc_hash": "0",
        "acc": acc,
        **more,
    }


def test_questions_are_joined_by_their_id_and_the_worst_comes_first(tmp_path: Path) -> None:
    ref = written(tmp_path / "ref.jsonl", [question(i, 1.0, [-1.0, -2.0]) for i in range(4)])
    cand = written(
        tmp_path / "cand.jsonl",
        [
            question(3, 0.0, [-1.0, -5.0]),
            question(2, 1.0, [-1.0, -2.0]),
            question(1, 0.5, [-9.0, -2.0]),
            question(7, 0.0, [-1.0]),
        ],
    )
    samples = read_samples(ref, cand)
    assert [sample.name for sample in samples] == ["doc 1", "doc 2", "doc 3"]
    worst, second = ranked(samples)
    assert (worst.name, worst.metric, worst.ref, worst.cand) == ("doc 3", "acc", 1.0, 0.0)
    # Of the requests of a question the one whose answers differ most is what is looked into.
    assert (worst.prompt, worst.continuation) == ("Question 3: ", "answer 1")
    assert (second.prompt, second.continuation) == ("Question 1: ", "answer 0")


def test_the_newer_form_of_arguments_and_generated_answers_are_read(tmp_path: Path) -> None:
    def line(score: float) -> dict[str, Any]:
        return {
            "doc_id": 5,
            "arguments": {"gen_args_0": {"arg_0": "2 + 2 =", "arg_1": {"until": ["."]}}},
            "resps": [["four"]],
            "filtered_resps": ["four"],
            "filter": "strict-match",
            "metrics": ["exact_match"],
            "exact_match": score,
        }

    ref, cand = written(tmp_path / "a.jsonl", [line(1.0)]), written(tmp_path / "b.jsonl", [line(0.0)])
    (sample,) = read_files((ref, cand))
    assert (sample.prompt, sample.continuation, sample.metric, sample.lost) == (
        "2 + 2 =",
        "",
        "exact_match",
        1.0,
    )


def test_where_less_is_better_a_greater_value_is_the_worse_one(tmp_path: Path) -> None:
    ref = written(tmp_path / "ref.jsonl", [question(0, 1.0, [-1.0], word_perplexity=8.0)])
    cand = written(tmp_path / "cand.jsonl", [question(0, 1.0, [-1.0], word_perplexity=9.0)])
    (sample,) = ranked(read_samples(ref, cand, metric="word_perplexity"))
    assert sample.lost == 1.0


def test_plain_lines_hold_both_sides(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"prompt": "a", "reference": 1.0, "candidate": 1.0},
        {"input_ids": [3, 4], "reference": 0.9, "candidate": 0.2},
    ]
    (worse,) = ranked(read_files((written(tmp_path / "pairs.jsonl", lines),)))
    assert (worse.name, worse.input_ids, worse.prompt) == ("line 2", (3, 4), None)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"reference": 1, "candidate": 0}', "line 1 of .* has no prompt"),
        ('{"prompt": "a", "reference": 1}', "candidate in line 1 of .* is None"),
        ('{"prompt": "a", "reference": NaN, "candidate": 0}', "reference in line 1 of .* is nan"),
        ('{"input_ids": [1.5], "reference": 1, "candidate": 0}', "has no prompt"),
        ("[1, 2]", "must be a JSON object"),
        ("{", "is no JSON"),
        ("", "holds no prompts"),
    ],
)
def test_a_line_that_is_no_sample_is_refused_with_its_number(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(UsageError, match=says):
        read_pairs(path)


def test_files_that_are_none_or_share_nothing_are_refused(tmp_path: Path) -> None:
    one = written(tmp_path / "one.jsonl", [question(0, 1.0, [-1.0])])
    other = written(tmp_path / "other.jsonl", [question(1, 1.0, [-1.0])])
    plain = written(tmp_path / "plain.jsonl", [{"prompt": "a", "reference": 1, "candidate": 0}])
    with pytest.raises(UsageError, match="none of a doc_id and filter that both have"):
        read_samples(one, other)
    with pytest.raises(UsageError, match="no sample file of lm-eval"):
        read_samples(one, plain)
    with pytest.raises(UsageError, match="can't be read"):
        read_samples(one, tmp_path / "nowhere.jsonl")
    with pytest.raises(UsageError, match=r"f1 in .* is None"):
        read_samples(one, one, metric="f1")
