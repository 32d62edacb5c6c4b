"""Integer arithmetic that wraps around, as NumPy's does.

Numba marks sums and products of signed integers as never overflowing, and LLVM draws conclusions
from that: `sign(x + x)` would become `sign(x)`.
"""

from typing import Any

from numba.core.extending import intrinsic


def _two(instruction: str) -> Any:
    def operation(typing: Any, a: Any, b: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, instruction)(*args)

        return a(a, a), codegen

    return operation


@intrinsic
def wneg(typing: Any, a: Any) -> Any:
    """-a, of the least integer itself."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.neg(args[0])

    return a(a), codegen


WRAPPING: dict[str, Any] = {
    "wadd": intrinsic(_two("add")), "wsub": intrinsic(_two("sub")), "wmul": intrinsic(_two("mul")),
    "wneg": wneg,
}  # fmt: skip
