"""The registry of faults as a table."""

from rich.table import Table
from rich.text import Text

from validator.faults import Parameter, registry

__all__ = ["faults_table"]


def faults_table() -> Table:
    """Return one row a fault: its name, what the port then does, and its parameters with their defaults."""
    table = Table("fault", "what the port does", "parameters", box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for fault in registry().values():
        ranks = f" Takes {fault.ranks} ranks." if fault.ranks > 1 else ""
        parameters = ", ".join(map(_shown, fault.parameters))
        table.add_row(Text(fault.name), Text(fault.what + ranks), Text(parameters))
    return table


def _shown(parameter: Parameter) -> str:
    return parameter.name if parameter.default is None else f"{parameter.name}={parameter.default}"
