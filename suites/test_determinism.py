"""The port gives the same bits again, or differs no further than rounding explains.

    validator run determinism --target port.py

What may change with the bits depends on what changes with the run: nothing where nothing does (D0); the order
of sums where the batch (D1) or the number of cards (D2) is another, and then the float64 oracle says whether
rounding explains both runs. A failure names the first tensor that differs and the reduction behind it
(`validator.determinism`). Every test also runs the port with a planted fault, and is inconclusive unless it
sees that.
"""

from collections import Counter
from dataclasses import replace

import pytest

from validator.determinism.records import Answer
from validator.determinism.study import Study, open_study
from validator.testing.runnable import card_counts_here
from validator.testing.validation import Validation

REPEATS, LONG_REPEATS = 2, 8
MORE_CARDS = 4  # in the long version: with two terms a sum has one order alone


@pytest.fixture
def study(validation: Validation) -> Study:
    """Return the port's runs, made once."""
    options = validation.settings.options
    repeats = LONG_REPEATS if validation.settings.long else REPEATS
    names = ("nproc", "device", "dtype", "tp", "recipe")
    return validation.shared(open_study, validation.source, *(options[name] for name in names), repeats)


def test_the_same_run_gives_the_same_bits(validation: Validation, study: Study) -> None:
    """Runs of the same inputs on the same cards are the same in every bit of every tensor."""
    hold(validation, *(study.run_to_run(count) for count in counts(validation)))


def test_no_memory_is_read_before_it_is_written(validation: Validation, study: Study) -> None:
    """The bits don't depend on what memory held before the port wrote to it."""
    hold(validation, study.memory())


def test_a_sequence_does_not_depend_on_its_batch(validation: Validation, study: Study) -> None:
    """A sequence is computed the same alone and in a batch, at every position, but for rounding."""
    hold(validation, study.batching())


def test_a_prompt_does_not_depend_on_its_chunks(validation: Validation, study: Study) -> None:
    """A prompt is computed the same in chunks and at once, but for rounding."""
    hold(validation, study.chunking())


def test_the_number_of_cards_changes_sums_over_cards_alone(validation: Validation, study: Study) -> None:
    """On more cards the bits are those of one, but for what rounding explains of sums over cards."""
    several = [count for count in counts(validation) if count > 1]
    if not several:
        validation.not_applicable(
            "no number of cards above 1 is named, or there: --card-counts 1,2, in pytest "
            "--validator-card-counts 1,2"
        )
    hold(validation, *(study.card_counts(count) for count in several))


def counts(validation: Validation) -> tuple[int, ...]:
    """Return the numbers of cards that are asked for."""
    settings = validation.settings
    more = replace(settings, card_counts=(MORE_CARDS,) if settings.long else (), names_card_counts=False)
    return tuple(sorted({settings.nproc, *card_counts_here(settings), *card_counts_here(more)}))


def hold(validation: Validation, *answers: Answer) -> None:
    """Fail with the first problem, or because nothing was compared or the control was not seen."""
    told = Counter[str]()
    for answer in answers:
        for name, value in [*answer.figures.items(), *(("note", note) for note in answer.notes)]:
            told[name] += 1
            validation.figure(name if told[name] == 1 else f"{name} {told[name]}", value)
        for problem in answer.problems:
            evidence = {"behind it": problem.cause} if problem.cause else {}
            validation.fail(problem.text, module=problem.module, rank=problem.rank, evidence=evidence)
    for answer in answers:
        if answer.blind is not None:
            validation.inconclusive(f"an absence of problems proves nothing: {answer.blind}")
    skipped = [answer.skipped for answer in answers if answer.skipped is not None]
    if len(skipped) == len(answers):
        validation.not_applicable("; ".join(skipped))
    for number, why in enumerate(skipped, 1):
        validation.figure("not applicable" if number == 1 else f"not applicable {number}", why)
    validation.figure("tensors compared", sum(answer.compared for answer in answers))
    validation.require(any(answer.compared for answer in answers), "no tensor was compared")
