"""Of the errors of several ranks the cause is told from its echoes."""

from pathlib import Path

import pytest

from validator.errors import LaunchError
from validator.rank_errors import cause, time_limit_error, trace_file, write_report


def raised(error: Exception, *, while_handling: str | None = None) -> Exception:
    try:
        try:
            if while_handling is not None:
                raise RuntimeError(while_handling)
        finally:
            raise error
    except Exception as caught:
        return caught


THREAD = "Thread 0x0000000000000007 (most recent call first):"
LOST = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer [127.0.0.1]:4321"


def test_a_lost_peer_is_an_echo_even_when_it_was_reported_first(tmp_path: Path) -> None:
    assert write_report(tmp_path, 0, raised(RuntimeError(LOST))).lost_peer
    assert not write_report(tmp_path, 1, raised(ValueError("planted"))).lost_peer
    assert "rank 1 raised ValueError: planted" in str(cause(tmp_path, rank=0, exitcode=1))


def test_a_lost_peer_under_another_error_is_an_echo(tmp_path: Path) -> None:
    assert write_report(tmp_path, 0, raised(ValueError("the model fails"), while_handling=LOST)).lost_peer


def test_of_two_errors_the_earlier_is_the_cause(tmp_path: Path) -> None:
    write_report(tmp_path, 1, raised(ValueError("first")))
    write_report(tmp_path, 0, raised(ValueError("second")))
    assert "rank 1 raised ValueError: first" in str(cause(tmp_path, rank=0, exitcode=1))


def test_a_rank_seen_to_die_without_a_report_is_the_cause(tmp_path: Path) -> None:
    write_report(tmp_path, 0, raised(ValueError("an echo that nobody can know as such")))
    assert str(cause(tmp_path, rank=1, exitcode=-15)) == "rank 1 was killed by signal 15 (SIGTERM)"


def test_a_crash_is_placed_by_the_stack_that_it_left(tmp_path: Path) -> None:
    log = tmp_path / "run_x" / "attempt_0" / "1" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text(
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x01 (most recent call first):\n"
        '  File "/site-packages/torch/_ops.py", line 7 in __call__\n'
        '  File "/me/port.py", line 9 in forward\n'
    )
    message = "rank 1 was killed by signal 11 (SIGSEGV), in /me/port.py:9 in forward"
    assert str(cause(tmp_path, rank=1, exitcode=-11)) == message


@pytest.mark.parametrize(
    ("stack", "place"),
    [
        (None, "not started"),
        ("finished\n", "finished"),
        ("", "unknown: it wrote no stack"),
        (f'{THREAD}\n  File "/me/port.py", line 9 in f\n', "/me/port.py:9 in f"),
        (f'{THREAD}\n  File "/site-packages/torch/nn/m.py", line 1 in g\n', "torch/nn/m.py:1 in g"),
    ],
    ids=["no file", "finished", "no stack", "user's code", "library alone"],
)
def test_the_time_limit_names_the_place_of_a_rank(tmp_path: Path, stack: str | None, place: str) -> None:
    if stack is not None:
        trace_file(tmp_path, 0).write_text(f"7\n{stack}")
    error = time_limit_error(tmp_path, nproc=1, timeout_s=2.5)
    assert isinstance(error, LaunchError)
    assert f"after 2.5 s and were ended. rank 0: {place}. " in str(error)
