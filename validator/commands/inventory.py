"""`validator inventory`: what a target's models consist of."""

import typer

from validator.commands.options import Device, Dtype, JsonFile, Nproc, Target, TensorParallel, Timeout
from validator.commands.running import clear, one_message, write_json
from validator.terminal import show, target_output_on_stderr

__all__ = ["inventory"]


def inventory(
    target: Target,
    nproc: Nproc = 1,
    device: Device = None,
    dtype: Dtype = None,
    tp: TensorParallel = None,
    timeout: Timeout = None,
    json_path: JsonFile = None,
) -> None:
    """List the modules and parameters of both models of a target; nothing is run.

    Exit codes: 0 listed, 1 a parameter has no value or is NaN, 2 could not build them.
    """
    with one_message():
        clear({"--json": json_path}, read={"the target": target})
    with one_message(json_path):
        with target_output_on_stderr():
            from validator.inventory import inventory_of

            found = inventory_of(target, nproc=nproc, device=device, dtype=dtype, tp=tp, timeout_s=timeout)
        if json_path is not None:
            write_json(json_path, found.to_json())
        if json_path != "-":
            show(found)
    raise typer.Exit(found.exit_code)
