"""Input that no caller should give: an error, never a crash. PJRT does not demand that of null handles; good plugins
do it, since one crash ends the process of every framework in it."""

from __future__ import annotations

from context import Context
from registry import Check, add

from ferrule.client import PjrtError
from ferrule.pjrt import abi


def _null_handle(function: abi.Function) -> None:
    fields = abi.STRUCTS_BY_NAME[function.args].fields
    if len(fields) < 3 or fields[2].direction != "in" or not fields[2].type.endswith(" *"):
        return
    pointed = fields[2].type.removeprefix("const ").removesuffix(" *")
    if not pointed.startswith("PJRT_") or pointed == "PJRT_NamedValue" or function.name in abi.VOID_FUNCTIONS:
        return
    name = function.name.removeprefix("PJRT_")

    def run(c: Context) -> None:
        try:
            c.call(name)
        except PjrtError as error:
            if error.code == "UNIMPLEMENTED":
                raise
            return
        assert name.endswith("_Destroy"), "it succeeded"

    add(
        Check(
            "null_handles", name, f"{name} answers a null {pointed} with an error (Destroy: with nothing).", run, False
        )
    )


for _function in abi.FUNCTIONS:
    _null_handle(_function)
