import io
from dataclasses import replace

import pytest
from rich.console import Console

from validator.capturing.provenance import LOOKING_CHANGED
from validator.checks.findings import (
    Arm,
    Check,
    Evidence,
    Outcome,
    Signature,
    Unchecked,
    Unobservable,
    Verdict,
)
from validator.report.finding_text import next_command
from validator.report.text import render, to_text

ALIGNED_80 = """\
aligned: 8 edges of 4 layers explained by rounding (recipe fused), bfloat16, 2
  ranks against the float64 oracle

  checked       parameter 4, function 4, wiring 4
  unobservable  epsilon 1e-06 x10 in 2 modules (model.norm, ...): it is far
                below what it is added to; tokens whose mean square is about
                1e-06 would show it
  unobservable  bias left out in (the model itself): all its values are 0;
                another checkpoint would show it
  KL            ref to cand mean 1.2e-4, max 3.1e-3; cand to ref mean 1.3e-4,
                max 3.0e-3 (noise like that of the logits gives 6.0e-4, storing
                them alone 1.1e-5)
  top-1         same token at 99.8% of 512 positions; 1 of 1 flip explained by
                the margin, 0.62 expected (p = 0.46)"""

DIVERGENT_80 = """\
divergent: first at model.layers.2.mlp.down_proj, rank 1

model.layers.2.mlp.down_proj: first divergence (function check; 4 edges before
  it are aligned)
  what        30 elements are outside the band, all in channel 40.
  reference   tiny-dense/  float64 oracle, weights rounded to bfloat16
              [B=2, S=16, D=64]
  candidate   tp2/  bfloat16, 2 ranks (tp=2), seen on rank 1
  outside     30 of 2048 elements (1.5%), all in tokens 0-3, 9; channel 40
  worst       [1, 9, 40]: oracle 0.81640625, candidate 0.83203125, 4.0 ulp; the
              band allows 0.90
  looks like  a factor of 1.02 (residual 0.40 ulp after it)
  next        validator check port.py --nproc 2 --include \\
              'model.layers.2.mlp.down_proj*' --keep run

1 further finding
  model.layers.3.self_attn, into o_proj  wiring    gain -5.1e-4

  checked     parameter 4, function 4, wiring 4
  KL          ref to cand mean 1.2e-4, max 3.1e-3; cand to ref mean 1.3e-4, max
              3.0e-3 (noise like that of the logits gives 6.0e-4, storing them
              alone 1.1e-5)
  top-1       same token at 99.8% of 512 positions; 1 of 1 flip explained by the
              margin, 0.62 expected (p = 0.46)"""

DIVERGENT_120 = """\
divergent: first at model.layers.2.mlp.down_proj, rank 1

model.layers.2.mlp.down_proj: first divergence (function check; 4 edges before it are aligned)
  what        30 elements are outside the band, all in channel 40.
  reference   tiny-dense/  float64 oracle, weights rounded to bfloat16  [B=2, S=16, D=64]
  candidate   tp2/  bfloat16, 2 ranks (tp=2), seen on rank 1
  outside     30 of 2048 elements (1.5%), all in tokens 0-3, 9; channel 40
  worst       [1, 9, 40]: oracle 0.81640625, candidate 0.83203125, 4.0 ulp; the band allows 0.90
  looks like  a factor of 1.02 (residual 0.40 ulp after it)
  next        validator check port.py --nproc 2 --include 'model.layers.2.mlp.down_proj*' --keep run

1 further finding
  model.layers.3.self_attn, into o_proj  wiring    gain -5.1e-4

  checked     parameter 4, function 4, wiring 4
  KL          ref to cand mean 1.2e-4, max 3.1e-3; cand to ref mean 1.3e-4, max 3.0e-3 (noise like that of the logits
              gives 6.0e-4, storing them alone 1.1e-5)
  top-1       same token at 99.8% of 512 positions; 1 of 1 flip explained by the margin, 0.62 expected (p = 0.46)"""  # noqa: E501


def test_an_aligned_run_reads_so_at_80_columns(aligned: Outcome) -> None:
    assert to_text(aligned) == ALIGNED_80


@pytest.mark.parametrize(("width", "text"), [(80, DIVERGENT_80), (120, DIVERGENT_120)], ids=["80", "120"])
def test_a_divergent_run_reads_so(divergent: Outcome, width: int, text: str) -> None:
    assert to_text(divergent, width) == text


def test_edges_before_a_finding_are_counted_as_those_of_a_whole_run(aligned: Outcome) -> None:
    """Parameters are judged, but are no edges: of 8 edges 7 come before the last one."""
    assert "aligned: 8 edges of 4 layers" in to_text(aligned, 160)
    last = aligned.judgements[-1]
    guilty = replace(last, verdict=Verdict.DIVERGENT, arm=Arm.MAX)
    outcome = replace(
        aligned,
        verdict=Verdict.DIVERGENT,
        findings=(guilty.found(summary=f"{last.module}: off"),),
        judgements=(*aligned.judgements[:-1], guilty),
    )
    assert "; 7 edges before it are aligned)" in to_text(outcome, 160)


def test_an_inconclusive_run_says_why_and_names_what_was_not_checked(inconclusive: Outcome) -> None:
    text = to_text(inconclusive, 160)
    assert text.startswith("inconclusive: no findings, but too little was checked to call it aligned\n")
    assert "\n  why         model.layers.0.attn has parameters and was judged by no check\n" in text
    names = "model.layers.0.attn, model.layers.1.attn, model.layers.2.attn and 2 more"
    assert f"unchecked   5: {names} (it never fired)\n" in text
    assert "aligned:" not in text


CHANGED = f"{LOOKING_CHANGED}: the outputs with hooks differ by up to 0.5"
NO_CHECK = "no check judged lm_head"


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        ((CHANGED,), "looking changed the candidate's run"),
        ((NO_CHECK,), "too little was checked to call it aligned"),
        (
            (NO_CHECK, CHANGED),
            "looking changed the candidate's run, and too little was checked to call it aligned",
        ),
    ],
    ids=["looking", "coverage", "both"],
)
def test_the_headline_of_an_inconclusive_run_is_that_of_its_reasons(
    inconclusive: Outcome, reasons: tuple[str, ...], words: str
) -> None:
    text = to_text(replace(inconclusive, why_inconclusive=reasons), 160)
    assert text.splitlines()[0] == f"inconclusive: no findings, but {words}"
    assert [line.split("why")[1].strip() for line in text.splitlines() if line.startswith("  why ")] == list(
        reasons
    )


def test_reasons_beside_a_finding_say_what_is_not_shown(divergent: Outcome) -> None:
    text = to_text(replace(divergent, why_inconclusive=(CHANGED, NO_CHECK)), 160)
    assert "  not shown   that nothing else is wrong: no check judged lm_head\n" in text
    assert f"  not shown   that nothing else is wrong: {CHANGED}\n" in text
    assert "\n  why " not in text


def test_an_undeclared_precision_names_the_recipe_that_would_explain_it(undeclared: Outcome) -> None:
    text = to_text(undeclared, 120)
    assert text.startswith(
        "undeclared precision: first at model.layers.2.mlp.down_proj, rank 1; recipe eager would explain it\n"
    )
    assert "first undeclared precision (function check;" in text


def test_the_block_is_about_the_first_divergence_even_after_an_undeclared_precision(
    divergent: Outcome, undeclared: Outcome
) -> None:
    earlier = replace(
        undeclared.findings[0], module="model.layers.0.mlp", candidate_module="model.layers.0.mlp"
    )
    text = to_text(replace(divergent, findings=(earlier, *divergent.findings)), 120)
    assert text.startswith("divergent: first at model.layers.2.mlp.down_proj, rank 1\n")
    assert "2 further findings\n  model.layers.0.mlp " in text
    assert "needs recipe eager" in text


def test_further_findings_beyond_eight_are_counted(divergent: Outcome) -> None:
    many = replace(divergent, findings=divergent.findings[:1] + divergent.findings[1:] * 11)
    text = to_text(many)
    assert text.count("into o_proj") == 8
    assert "11 further findings" in text
    assert "  ... and 3 more" in text


def test_names_are_not_read_as_markup_and_cannot_command_the_terminal(divergent: Outcome) -> None:
    hostile = replace(
        divergent.findings[0],
        module="[red]x[/red]\x1b[2J\n",
        candidate_module="[/]",
        summary="[bold]wrong[/bold]",
    )
    outcome = replace(
        divergent,
        findings=(hostile,),
        notes=("[link=file:///]a[/link]",),
        unchecked=(Unchecked(module="[blink]", why="[/red]"),),
        unobservable=(Unobservable(module="[i]", what="[/i]", why="[b]\x1b[2J", propose="[/b]"),),
    )
    text = to_text(outcome)
    assert "divergent: first at [red]x[/red]\\x1b[2J\\n, rank 1" in text
    assert "[bold]wrong[/bold]" in text
    assert "named [/]" in text
    assert "[link=file:///]a[/link]" in text
    assert "[blink] ([/red])" in text
    assert "[/i] in [i]: [b]\\x1b[2J; [/b] would show it" in text
    assert "\x1b" not in text


def test_no_line_is_wider_than_the_console_nor_ends_in_a_space(divergent: Outcome) -> None:
    long = "model." + ".".join(f"a_rather_long_module_name_{i}" for i in range(8))
    outcome = replace(divergent, findings=(replace(divergent.findings[0], module=long), *divergent.findings))
    for width in (60, 80, 100):
        lines = to_text(outcome, width).splitlines()
        assert max(map(len, lines)) <= width
        assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "no-terminal"])
def test_colours_appear_on_terminals_only(divergent: Outcome, terminal: bool) -> None:
    stream = io.StringIO()
    console = Console(
        file=stream,
        force_terminal=terminal,
        width=80,
        color_system="standard" if terminal else "auto",
        _environ={},
    )
    console.print(render(divergent))
    assert ("\x1b[" in stream.getvalue()) is terminal


def test_no_color_leaves_no_colour_on_a_terminal(divergent: Outcome) -> None:
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, width=80, _environ={"NO_COLOR": "1", "TERM": "xterm"}).print(
        render(divergent)
    )
    assert "\x1b[1;31m" not in stream.getvalue()
    assert "31m" not in stream.getvalue()


def test_a_systematic_factor_is_told_by_its_gain(divergent: Outcome) -> None:
    text = to_text(replace(divergent, findings=divergent.findings[1:]))
    assert text.startswith("divergent: first at model.layers.3.self_attn, into o_proj\n")
    assert "gain        -5.1e-4, 31.4 standard errors from 0: too systematic for rounding" in text
    assert "outside" not in text


def test_the_worst_element_has_its_own_error_and_not_that_of_an_element_near_zero(divergent: Outcome) -> None:
    first = divergent.findings[0]
    elsewhere = replace(first, evidence=replace(first.evidence, ulp_error_max=297.0))
    text = to_text(replace(divergent, findings=(elsewhere,)), 120)
    # 4.44 bands, each of 0.9 ulp
    assert "candidate 0.83203125, 4.0 ulp; the band allows 0.90" in text


def test_an_element_of_another_class_has_no_distance(divergent: Outcome) -> None:
    first = divergent.findings[0]
    overflow = replace(first, arm=Arm.CLASS, evidence=replace(first.evidence, candidate=float("inf")))
    text = to_text(replace(divergent, findings=(overflow,)))
    assert "worst       [1, 9, 40]: oracle 0.81640625, candidate inf\n" in text


@pytest.mark.parametrize(
    ("modules", "run", "check", "command"),
    [
        ({}, {}, Check.FUNCTION, "--include 'cand.down*' --keep run"),
        ({"exclude": ["a"]}, {}, Check.FUNCTION, "--include 'cand.down*' --exclude a --keep run"),
        ({"include": ["cand.*"]}, {}, Check.FUNCTION, "--include 'cand.down*' --repro repro"),
        ({}, {"kept": "run"}, Check.FUNCTION, "--include 'cand.down*' --repro repro"),
        ({}, {"reproducer": "repro"}, Check.FUNCTION, "--include 'cand.down*' --keep run"),
        ({"include": ["cand.*"]}, {"reproducer": "repro"}, Check.FUNCTION, None),
        ({"include": ["cand.*"]}, {}, Check.DISTRIBUTION, None),
    ],
    ids=["whole", "excluded", "included", "kept", "reproduced", "included-and-reproduced", "nothing-to-run"],
)
def test_the_next_command_goes_on_from_what_was_run(
    divergent: Outcome,
    modules: dict[str, list[str]],
    run: dict[str, str],
    check: Check,
    command: str | None,
) -> None:
    found = replace(divergent.findings[0], candidate_module="cand.down", check=check)
    candidate = {**divergent.run["candidate"], "modules": modules}
    outcome = replace(divergent, run={**divergent.run, **run, "candidate": candidate})
    expected = None if command is None else f"validator check port.py --nproc 2 {command}"
    assert next_command(outcome, found) == expected


def test_what_is_wrong_does_not_say_the_modules_name_again(divergent: Outcome) -> None:
    first = replace(divergent.findings[0], summary="model.layers.2.mlp.down_proj: the output is wrong")
    assert "  what        the output is wrong\n" in to_text(replace(divergent, findings=(first,)))


def test_what_could_not_be_checked_is_grouped_by_reason(aligned: Outcome) -> None:
    few = [Unchecked(module=f"layers.{i}.norm", why="it never fired") for i in range(4)]
    outcome = replace(aligned, unchecked=(*few, Unchecked(module="lm_head", why="one row")))
    grouped = "layers.0.norm, layers.1.norm, layers.2.norm and 1 more (it never fired); lm_head (one row)\n"
    assert f"unchecked     5: {grouped}" in to_text(outcome, 120)


def test_of_many_faults_that_could_not_show_the_most_frequent_kinds_are_shown(aligned: Outcome) -> None:
    kinds = [
        Unobservable(module=f"layers.{i}", what=f"fault {kind}", why="w", propose="p")
        for kind in range(5)
        for i in range(kind + 1)
    ]
    text = to_text(replace(aligned, unobservable=tuple(kinds)), 120)
    assert [line.split()[2] for line in text.splitlines() if "would show it" in line] == ["4", "3", "2"]
    assert "fault 4 in 5 modules (layers.0, ...): w; p would show it\n" in text
    assert "unobservable  ... and 2 more kinds (see --json)\n" in text


def test_a_wrong_weight_is_named_by_its_parameter(divergent: Outcome) -> None:
    wrong = replace(
        divergent.findings[0],
        module="lm_head",
        candidate_module="lm_head",
        check=Check.PARAMETER,
        path="lm_head.weight",
        arm=Arm.EXACT,
        evidence=Evidence(worst_index=(3, 0), reference=1.0, candidate=1.02, outside=64, elements=4096),
        signature=None,
    )
    text = to_text(replace(divergent, findings=(wrong,)))
    assert text.startswith("divergent: first at lm_head.weight, rank 1\n")
    assert "reference   tiny-dense/  rounded once to bfloat16" in text
    assert "differ      64 of 4096 elements (1.6%)" in text
    assert "worst       [3, 0]: reference 1, candidate 1.02\n" in text


def test_the_model_itself_has_a_name(divergent: Outcome) -> None:
    wrong = replace(divergent.findings[0], module="", candidate_module="", into="lm_head", rank=None)
    text = to_text(replace(divergent, findings=(wrong,)))
    assert text.startswith("divergent: first at (the model itself), into lm_head\n")
    assert "next        validator check port.py --nproc 2 --keep run" in text


def test_a_run_that_can_not_be_repeated_suggests_no_command(divergent: Outcome) -> None:
    assert "next" not in to_text(replace(divergent, run={}))


def test_other_modules_of_the_next_command_are_quoted_for_the_shell(divergent: Outcome) -> None:
    name = "a; rm -rf 'x"
    hostile = replace(divergent.findings[0], module=name, candidate_module=name)
    assert """--include 'a; rm -rf '"'"'x*' --keep run""" in to_text(
        replace(divergent, findings=(hostile,)), 200
    )


def test_a_signature_shows_all_its_parameters(divergent: Outcome) -> None:
    found = Signature(
        kind="rows_dealt_wrongly", parameters={"order": [1, 0], "layout": "q k v", "ranks": [1]}
    )
    text = to_text(replace(divergent, findings=(replace(divergent.findings[0], signature=found),)))
    assert "looks like  rows dealt wrongly, order 1, 0, layout q k v, rank 1\n" in text


def test_a_run_without_any_edge_says_that_nothing_was_checked() -> None:
    outcome = Outcome(
        verdict=Verdict.INCONCLUSIVE, findings=(), judgements=(), why_inconclusive=("nothing was compared",)
    )
    assert "checked     nothing" in to_text(outcome)


def test_figures_that_are_not_finite_are_shown(aligned: Outcome) -> None:
    figures = {"kl": {"mean": "inf", "max": float("inf")}, "top1_agreement": 0.0}
    text = to_text(replace(aligned, distribution=figures), 120)
    assert "KL            ref to cand mean inf, max inf\n" in text
    assert "same token at 0.0%" in text
