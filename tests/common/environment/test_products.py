"""The rounding of matrix products that switches of an environment allow."""

from __future__ import annotations

from typing import Any

from probe.common.environment.environment_file import product_roundoff


def test_the_roundoff_is_that_of_the_coarser_run() -> None:
    def environment(**switches: Any) -> dict[str, Any]:
        return {"switches": {"matmul_tf32": False, "float32_matmul_precision": "highest", **switches}}

    assert product_roundoff([environment(), None, {"switches": 3}, {}]) == 0.0
    assert product_roundoff([environment(), environment(matmul_tf32=True)]) == 2.0**-11
    assert product_roundoff([environment(float32_matmul_precision="high"), None]) == 2.0**-11
    assert product_roundoff([environment(float32_matmul_precision="medium")]) == 2.0**-8
