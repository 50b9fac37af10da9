"""`docs/claims.md` shows code that runs, and numbers that come out."""

import re
from pathlib import Path

from attnbench.analysis.claims import judge, load_claims
from attnbench.measure.claims.checks import measure_claim
from attnbench.render.claims import claim_lines

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
LEAKY = ROOT / "tests" / "toys" / "wrong_attentions.py"


def test_code_judges_somebodys_file() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    *lines, verdict = code.replace("./my_kernel.py", f"{LEAKY}#sees-the-next").splitlines()
    names: dict[str, object] = {}
    exec("\n".join(lines), names)
    assert eval(verdict, names) == "fails"


def test_example_is_what_comes_out() -> None:
    (claim,) = load_claims(["plain-accesses-width"])
    lines = list(claim_lines([judge(claim, measure_claim(claim.measure))]))
    assert "\n".join(lines[:-2]) in PAGE
