"""By which products a type's own may be computed. In: rates by what is multiplied, a dtype. Out: the fastest
that loses none of its accuracy.
"""

from collections.abc import Mapping

AS_ACCURATE = {
    "float64": ("float64",),
    "float32": ("float32", "tf32"),
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float16", "float32"),
}
"""By what the products of a case of each type may be computed without losing its accuracy: by TF32 three for
one. ``float32`` itself never goes through TF32, which is for CUDA alone.
"""
TF32_FOR_FLOAT32 = 3
"""Products in TF32 that make one of float32's accuracy."""


def product_rate(flops_per_s: Mapping[str, float], dtype: str) -> tuple[str, float] | None:
    """Return the fastest way to products as accurate as the type's, and its name; None if unknown."""
    rates = {name: flops_per_s[name] for name in AS_ACCURATE.get(dtype, ()) if name in flops_per_s}
    if "tf32" in rates:
        rates[f"tf32, {TF32_FOR_FLOAT32} for one"] = rates.pop("tf32") / TF32_FOR_FLOAT32
    return max(rates.items(), key=lambda item: item[1]) if dtype in flops_per_s else None
